"""An MLP and experts side by side, each between norms of its own, as Gemma 4's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.experts.layer import Router, experts
from engine.kernels.experts.products import ExpertWeights
from engine.kernels.experts.routing import Routing
from engine.kernels.invariant.product import InvariantProduct
from engine.kernels.linear import Linear
from engine.memory.routes import NoteRouting
from engine.models.formats.part import Normed
from engine.models.formats.reader import WeightReader
from engine.models.layers.experts import ExpertMlp
from engine.models.layers.layer import LayerInputs, LayerPlaces, Stream, Sublayer, SublayerSpec
from engine.models.layers.mlp import Mlp
from engine.models.layers.norms import Map, NormSpec
from engine.models.weights.shares import Division, undivided
from engine.parallel.collectives import rank_sum
from sampling.device.ranks import RankExchange


@dataclass(frozen=True, kw_only=True)
class DenseAndExperts(SublayerSpec):
    """norm(mlp_norm(mlp(x)) + after(experts(before(x)))); the router has a norm without a weight.

    Attributes:
        mlp: with its norm in front; mlp_norm: after it.
        experts: whose weights are read; its norm and router are not.
        before, after: norms of the experts. eps: of the router's. norm: of the sum.
    """

    has_experts = True

    mlp: Mlp
    mlp_norm: NormSpec
    experts: ExpertMlp
    before: NormSpec
    after: NormSpec
    norm: NormSpec
    eps: float

    @property
    def divisions(self) -> Iterable[Division]:
        return [*self.mlp.divisions, *self.experts.divisions]

    def load(self, reader: WeightReader, prefix: str, places: LayerPlaces) -> Sublayer:
        width, prefix = self.mlp.hidden_size, f"{prefix}."
        inner, down = self.mlp.read(reader, prefix.removesuffix("."))
        return LoadedDenseAndExperts(
            inner,
            down,
            self.mlp_norm.load(reader, width, prefix),
            self._read_router(reader, f"{prefix}router"),
            self.before.load(reader, width, prefix),
            self.experts.read_weights(reader, prefix.removesuffix(".")),
            self.after.load(reader, width, prefix),
            self.norm.load(reader, width, prefix),
            None if reader.ranks.is_lone else reader.ranks.exchange,
            self.experts.note(reader, prefix.removesuffix(".")),
            reader.modules.invariant,
        )

    def _read_router(self, reader: WeightReader, name: str) -> ScaledRouter:
        count, hidden = self.experts.num_experts, self.mlp.hidden_size
        weight = reader.unquantized(f"{name}.proj", undivided(count), hidden)
        scale = reader.tensor(f"{name}.scale", undivided(hidden))
        per_expert = reader.tensor(
            f"{name}.per_expert_scale", undivided(count), dtype=torch.float32
        )
        invariant = None
        if reader.modules.invariant:
            invariant = InvariantProduct(weight).compiled(out_dtype=torch.float32)
        router = Router(weight, None, self.experts.rules, invariant=invariant)
        return ScaledRouter(router, scale, per_expert, self.eps)


class ScaledRouter(NamedTuple):
    """Chooses experts by the product of a norm without a weight, times a scale.

    Attributes:
        scale: [hidden], of inputs beside hidden ** -0.5.
        per_expert: float32 [experts], factors of the weights that are chosen.
    """

    router: Router
    scale: torch.Tensor
    per_expert: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> Routing:
        """Choose for the rows of a stream [T, hidden]."""
        normed = F.rms_norm(x.float(), (x.shape[1],), None, self.eps).to(x.dtype)
        rows = normed * self.scale * x.shape[1] ** -0.5
        routing = self.router(rows)
        return routing._replace(weights=routing.weights * self.per_expert[routing.ids.long()])


class LoadedDenseAndExperts(NamedTuple):
    """The `Sublayer` of a `DenseAndExperts`.

    Attributes:
        inner: maps (x, residual) to what `down` multiplies, and the sum.
        exchange: of ranks that have some inner columns of each expert; None is one rank.
        note: notes which experts were chosen; None where nobody asks.
        invariant: a row's bits may not depend on the number of rows.
    """

    inner: Normed
    down: Linear
    mlp_norm: Map
    router: ScaledRouter
    before: Map
    weights: ExpertWeights
    after: Map
    norm: Map
    exchange: RankExchange | None
    note: NoteRouting | None
    invariant: bool

    def __call__(self, stream: Stream, inputs: LayerInputs) -> Stream:
        inner, total = self.inner(*stream)
        dense = self.mlp_norm(self.down(inner))
        routing = self.router(total)
        if self.note is not None:
            self.note(*routing)
        out = experts(self.before(total), routing, self.weights, invariant=self.invariant)
        if self.exchange is not None:
            out = rank_sum(out, self.exchange)
        return self.norm(dense + self.after(out)), total
