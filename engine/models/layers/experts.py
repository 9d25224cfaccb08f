"""An MLP of experts, of which each token takes a few."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.adapters.parts import ExpertModules
from engine.errors import AS_PUBLISHED, ModelError
from engine.kernels.experts.adapted import ExpertAdapters
from engine.kernels.experts.gates import SILU, num_products
from engine.kernels.experts.layer import Experts, Latent, Router
from engine.kernels.experts.products import ExpertWeights
from engine.kernels.experts.routing import RoutingRules
from engine.kernels.invariant.product import InvariantProduct
from engine.memory.routes import NoteRouting
from engine.models.formats.expert_stack import ExpertStack
from engine.models.formats.modules import ModuleShape, PackedExperts
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer, SublayerSpec
from engine.models.layers.norms import Map
from engine.models.layers.residual import AS_IT_IS, AddedOutput
from engine.models.layers.shared_expert import read_shared_expert
from engine.models.weights.shares import (
    COLUMNS,
    Division,
    OwnedPart,
    RankShare,
    undivided,
)
from engine.parallel.collectives import rank_sum
from sampling.device.ranks import RankExchange


@dataclass(frozen=True, kw_only=True)
class ExpertMlp(SublayerSpec):
    """The experts of a layer, after an RMSNorm.

    Attributes:
        norm: name of the norm; it is by 1 + weight where `norm_plus_one`.
        inner, shared_inner: sizes of an expert and of the one that all tokens take, 0 for none.
        shared_name: of the latter, in the module or, if `shared_beside`, beside it.
        shared_gate: it is multiplied by a sigmoid of its own.
        shared_names: of its products; gate and up may be packed in one.
        name: of the module that holds them.
        names: of an expert's gate, up and down products; of up and down where the gate is of one.
        packed: names of two tensors that hold all experts, gate rows before up rows, and down;
            they are read where a checkpoint has them. None: it never does.
        latent: width that experts read and make, and the names of the products between it and the
            stream; None is the stream's.
        router: name of the product that chooses, and whether it has a bias.
        correction: name of what is added to scores when experts are chosen; None is nothing.
        gate: how gate and up are joined, see `gates`.
        joined: all experts are in one tensor each, gate and up rows in turn, and have biases.
    """

    has_experts = True

    hidden_size: int
    norm: str = "post_attention_layernorm"
    norm_eps: float
    norm_plus_one: bool = False
    num_experts: int
    rules: RoutingRules
    inner: int
    shared_inner: int = 0
    shared_name: str = "shared_expert"
    shared_beside: bool = False
    shared_gate: bool = True
    shared_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    name: str = "mlp"
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    packed: tuple[str, str] | None = None
    latent: tuple[int, str, str] | None = None
    router: str = "gate"
    router_bias: bool = False
    correction: str | None = None
    gate: str = SILU
    joined: bool = False
    output: AddedOutput = AS_IT_IS

    def __post_init__(self) -> None:
        top_k, groups, taken = self.rules.top_k, self.rules.num_groups, self.rules.top_groups
        if not 1 <= top_k <= self.num_experts:
            raise ModelError(
                f"config.json: num_experts_per_tok must be from 1 to the number of experts "
                f"({self.num_experts}), got {top_k}; {AS_PUBLISHED}"
            )
        if groups > 1 and (
            self.num_experts % groups or not top_k * groups <= taken * self.num_experts
        ):
            raise ModelError(
                f"config.json: {taken} (topk_group) of {groups} groups (n_group) of "
                f"{self.num_experts} experts do not hold the {top_k} that a token takes; "
                f"{AS_PUBLISHED}"
            )

    @property
    def divisions(self) -> Iterable[Division]:
        return [
            Division(COLUMNS, self.inner, "the experts' inner size"),
            Division(COLUMNS, self.shared_inner, "the shared expert's inner size"),
        ]

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        name = f"{prefix}.{self.name}"
        stored = reader.tensor(f"{prefix}.{self.norm}.weight", undivided(self.hidden_size))
        norm = stored
        if self.norm_plus_one:
            norm = reader.derived(lambda: 1.0 + stored.float(), stored)
        router, shared = self._read_router(reader, name), None
        if self.shared_inner:
            holder = prefix if self.shared_beside else name
            shared = read_shared_expert(
                reader,
                f"{holder}.{self.shared_name}",
                self.shared_names,
                (self.hidden_size, self.shared_inner),
                self.gate,
                has_gate=self.shared_gate,
            )
        weights = self.read_weights(reader, prefix)
        exchange = None if reader.ranks.is_lone else reader.ranks.exchange
        latent = self._read_latent(reader, name)
        experts = Experts(
            *(norm, self.norm_eps, router, weights, shared, latent),
            invariant=reader.modules.invariant,
            note=self.note(reader, prefix),
        )
        output = self.output.load(reader, self.hidden_size, f"{prefix}.")
        return LoadedExperts(experts, exchange, output)

    def note(self, reader: WeightReader, prefix: str) -> NoteRouting | None:
        """What notes the choices of the layer of this name; None where nobody asks for them."""
        if reader.routes is None:
            return None
        layer = int(prefix.rpartition(".")[2])
        return reader.routes.of_layer(layer, self.num_experts, self.rules.top_k)

    def read_weights(self, reader: WeightReader, prefix: str) -> ExpertWeights:
        """Read the experts' products alone."""
        name, columns = f"{prefix}.{self.name}", reader.ranks.columns(self.inner)
        # A token multiplies the router's weights and those of its experts.
        taken = (num_products(self.gate) + 1) * self.rules.top_k * columns.length
        reader.num_in_layers += self._width * taken + self.hidden_size * self.num_experts
        weights, orders = self._read_stored(reader, name, columns)
        return weights._replace(adapters=self._adapters(reader, name, columns, orders))

    def _read_stored(
        self, reader: WeightReader, name: str, columns: RankShare
    ) -> tuple[ExpertWeights, Sequence[torch.Tensor | None]]:
        """Read weights as they are stored, and the order of each expert's inner columns."""
        in_order = [None] * self.num_experts
        if self.joined:
            return self._read_joined(reader, f"{name}.experts", columns), in_order
        if self.packed is not None:
            first, second = (f"{name}.{each}" for each in self.packed)
            if reader.modules.source.shape(first) is not None:
                return self._read_packed(reader, first, second, columns), in_order
        return self._read_each(reader, f"{name}.experts", columns)

    def _adapters(
        self,
        reader: WeightReader,
        name: str,
        columns: RankShare,
        orders: Sequence[torch.Tensor | None],
    ) -> ExpertAdapters | None:
        """Room for adapters beside the experts' products, where they are to have some."""
        if reader.adapters is None:
            return None
        *first, last = self.names
        modules = ExpertModules(
            name=f"{name}.experts",
            first=first,
            last=last,
            tensors=("gate_up_proj" if len(first) == 2 else first[0], "down_proj"),
            num_experts=self.num_experts,
            inner=columns,
            width=self._width,
            is_interleaved=self.joined,
            orders=orders,
        )
        stacks = reader.adapters.add_experts(modules)
        return None if stacks is None else ExpertAdapters(*stacks, reader.adapters.active)

    @property
    def _width(self) -> int:
        """The width of what experts read and make."""
        return self.hidden_size if self.latent is None else self.latent[0]

    def _read_latent(self, reader: WeightReader, name: str) -> Latent | None:
        if self.latent is None:
            return None
        width, compress, widen = self.latent
        narrow, wide = undivided(width), undivided(self.hidden_size)
        return Latent(
            reader.linear([Projection(f"{name}.{compress}", (narrow,))], wide),
            reader.product([Projection(f"{name}.{widen}", (wide,))], narrow).linear,
        )

    def _read_router(self, reader: WeightReader, name: str) -> Router:
        share, router = undivided(self.num_experts), f"{name}.{self.router}"
        weight = reader.unquantized(router, share, self.hidden_size)
        bias = reader.tensor(f"{router}.bias", share) if self.router_bias else None
        correction = None
        if self.correction is not None:
            place = f"{name}.{self.correction}"
            has_rows = len(reader.modules.source.shape(place) or ()) == 2  # ERNIE's has one
            shares, shape = ((undivided(1),), (share.length,)) if has_rows else ((share,), ())
            correction = reader.channels(place, shares, *shape, dtype=torch.float32).flatten()
        invariant = None
        if reader.modules.invariant:  # compiled, and compared with the library, while it loads
            invariant = InvariantProduct(weight).compiled(out_dtype=torch.float32)
        return Router(weight, bias, self.rules, correction, invariant)

    def _read_each(
        self, reader: WeightReader, name: str, columns: RankShare
    ) -> tuple[ExpertWeights, Sequence[torch.Tensor | None]]:
        """Read experts that are modules of their own.

        Where an expert's down product has its inputs in an order (GPTQ's act-order), gate and up
        have their channels put into it, and nothing is left to do for a step; a rank's are whole
        groups.
        """
        width, inner = self._width, columns.length
        gate_up, down = self._stacks(reader, inner)
        orders = []
        for expert in range(self.num_experts):
            *first, own_down = (f"{name}.{expert}.{part}" for part in self.names)
            shape = ModuleShape(own_down, width, inner, OwnedPart.of(1, (columns,)))
            part, order = reader.modules.part_by_groups(shape)
            orders.append(order)
            down.put(expert, 0, part, own_down)
            reader.notes.expert(shape, down, expert, 0, by_groups=order, is_by_groups=True)
            for index, module in enumerate(first):
                shape = ModuleShape(module, inner, width, OwnedPart.of(0, (columns,)))
                gate_up.put(expert, index * inner, reader.modules.part(shape, order), module)
                reader.notes.expert(shape, gate_up, expert, index * inner, outputs=order)
        return ExpertWeights(gate_up.product, down.product, None, None, self.gate), orders

    def _read_packed(
        self, reader: WeightReader, first: str, second: str, columns: RankShare
    ) -> ExpertWeights:
        """Read experts of one tensor each, gate rows before up rows."""
        gate_up, down = self._stacks(reader, columns.length)
        width, rows = undivided(self._width), (columns,) * num_products(self.gate)
        for stack, name, outputs, inputs in (
            (gate_up, first, rows, width),
            (down, second, (width,), columns),
        ):
            experts = PackedExperts(name, self.num_experts, outputs, inputs)
            for expert, part in enumerate(reader.modules.packed_parts(experts)):
                stack.put(expert, 0, part, name)
            reader.notes.packed_experts(experts, stack)
        return ExpertWeights(gate_up.product, down.product, None, None, self.gate)

    def _read_joined(self, reader: WeightReader, name: str, columns: RankShare) -> ExpertWeights:
        """Read experts of one tensor each; gate and up of a column are neighbors in it."""
        hidden, pairs, count = undivided(self.hidden_size), columns.times(2), self.num_experts
        gate_up, down = self._stacks(reader, columns.length)
        halves = torch.arange(pairs.length, device=reader.device).view(-1, 2).t().flatten()
        first, second = f"{name}.gate_up_proj", f"{name}.down_proj"
        for stack, tensor, outputs, inputs, order in (
            (gate_up, first, pairs, hidden, halves),
            (down, second, hidden, columns, None),
        ):
            experts = PackedExperts(tensor, count, (outputs,), inputs, order)
            for expert, part in enumerate(reader.modules.expert_parts(experts)):
                stack.put(expert, 0, part, tensor)
            reader.notes.packed_experts(experts, stack, is_joined=True)
        pair_bias = reader.bank(f"{first}_bias", count, pairs)
        bias = reader.derived(lambda: pair_bias[:, halves], pair_bias)
        whole_bias = reader.bank(f"{second}_bias", count, hidden)
        is_mine = float(reader.ranks.exchange.rank == 0)  # one rank adds it
        down_bias = reader.derived(lambda: whole_bias * is_mine, whole_bias)
        return ExpertWeights(gate_up.product, down.product, bias, down_bias, self.gate)

    def _stacks(self, reader: WeightReader, inner: int) -> tuple[ExpertStack, ExpertStack]:
        """Room for the gate-up and down weights of all experts."""
        return (
            reader.experts(self.num_experts, num_products(self.gate) * inner),
            reader.experts(self.num_experts, self._width),
        )


class LoadedExperts(NamedTuple):
    """The `Sublayer` of experts.

    Attributes:
        exchange: of ranks that have some inner columns of each expert; None is one rank.
    """

    experts: Experts
    exchange: RankExchange | None
    output: Map | None

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        x, residual = stream
        if residual is None:  # they are the first sublayer
            x, residual = torch.zeros_like(x), x.clone()
        out, residual = self.experts(x, residual)
        if self.exchange is not None:
            out = rank_sum(out, self.exchange)
        return (out if self.output is None else self.output(out)), residual
