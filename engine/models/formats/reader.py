"""Reads the weights of layers: tensors and products by their names in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.adapters.stacks import AdapterStacks
from engine.contracts.named_weights import NamedWeights
from engine.kernels.linear import LaidOut, Linear
from engine.memory.routes import ExpertRoutes
from engine.models.formats.adapted import AdaptedProduct
from engine.models.formats.expert_stack import ExpertStack
from engine.models.formats.held_modules import WeightNotes
from engine.models.formats.modules import ModuleShape, PlainModules, RoundedModules
from engine.models.formats.part import WeightProduct
from engine.models.formats.projections import Projection, ProjectionReader
from engine.models.formats.quantized_modules import QuantizedModules
from engine.models.formats.scheme import Quantization
from engine.models.weights.read_twice import ReadTwice
from engine.models.weights.registry import WeightRegistry
from engine.models.weights.shares import OwnedPart, RankShare, RankShares
from engine.models.weights.stored import WeightSource, fill
from engine.parallel.collectives import summed
from sampling.device.ranks import LoneRank, RankExchange


class WeightReader:
    """Reads what layers ask for: all of it, or one rank's parts.

    Args:
        source: of tensors that are no module's weight.
        modules: how modules' weights are stored.
        adapters: gets room beside each product that is read; None where none are served.
        routes: keep the experts that tokens take; None where nobody asks.
        is_noted: see `named_weights`.

    Attributes:
        num_in_layers: number of weights in the products read so far.
        notes: of where what is read is held.
    """

    def __init__(
        self,
        source: WeightSource,
        modules: PlainModules,
        ranks: RankShares,
        adapters: AdapterStacks | None = None,
        routes: ExpertRoutes | None = None,
        *,
        is_noted: bool = True,
    ) -> None:
        self._source, self.modules, self.ranks = source, modules, ranks
        self.adapters, self.routes = adapters, routes
        registry = WeightRegistry(source, ranks.exchange, is_kept=is_noted)
        self.notes = WeightNotes(registry, modules)
        self._projections = ProjectionReader(modules, self.notes, ranks.exchange.rank)
        self.dtype, self.device = modules.dtype, modules.device
        self.num_in_layers = 0

    @classmethod
    def of(
        cls,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        *,
        fp8: bool = False,
        quantization: Quantization | None = None,
        exchange: RankExchange | None = None,
        reads_twice: bool = False,
        invariant: bool = False,
        adapters: AdapterStacks | None = None,
        routes: ExpertRoutes | None = None,
    ) -> WeightReader:
        """Make the reader of a source.

        Args:
            dtype: of the model.
            fp8: round the weights of the layers' products as they are read, a scale an output
                channel; embedding and LM head stay as they are.
            quantization: of a checkpoint that is quantized.
            exchange: the ranks whose parts make up the model; None is one rank.
            reads_twice: `as_unquantized` will be called.
            invariant: a row's products may not depend on the number of rows.
            adapters, routes: as of the class.
        """
        exchange, group = exchange or LoneRank(), 1
        tensors = ReadTwice(source) if reads_twice else source
        if quantization is not None:  # weights are kept as they were unpacked, or are read again
            modules: PlainModules = QuantizedModules(
                quantization, source, dtype, device, exchange.size, invariant=invariant
            )
            group = quantization.input_group
        else:
            kind = RoundedModules if fp8 else PlainModules
            modules = kind(tensors, dtype, device, invariant=invariant)
        return cls(tensors, modules, RankShares(exchange, group), adapters, routes)

    def as_unquantized(self) -> WeightReader:
        """Make the reader of what this one reads from now on, without its quantization."""
        assert isinstance(self._source, ReadTwice), "reads_twice was asked for"
        self._source.hold()
        modules = self.modules.as_unquantized()
        return WeightReader(self._source, modules, self.ranks, is_noted=False)

    def finish(self) -> None:
        """End the reading: all tensors were read."""
        self._source.finish()
        if self.adapters is not None:
            self.adapters.allocate(self.dtype, self.device)

    def named_weights(self) -> NamedWeights:
        """What was read, by its names in the checkpoint."""
        return self.notes.registry.named()

    def tensor(
        self, name: str, share: RankShare, *, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Read a vector, or the rank's share of it, in the model's dtype or another."""
        return self.channels(name, (share,), dtype=dtype)

    def scalar(self, name: str, *, dtype: torch.dtype) -> torch.Tensor:
        """Read a tensor of one number and no dimension."""
        target = torch.empty((), dtype=dtype, device=self.device)
        fill(self._source, target, name, None)
        self.notes.tensor(target, None)
        return target

    def channels(
        self, name: str, shares: Sequence[RankShare], *shape: int, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Read a tensor [channels, *shape], or the rank's shares of its channels, in order."""
        count = sum(share.length for share in shares)
        target = torch.empty((count, *shape), dtype=dtype or self.dtype, device=self.device)
        own = OwnedPart.of(0, shares)
        fill(self._source, target, name, own)
        self.notes.tensor(target, own)
        return target

    def derived(self, make: Callable[[], torch.Tensor], *bases: torch.Tensor) -> torch.Tensor:
        """Make a tensor of others that were read, and again in its place when they are written."""
        tensor = make()

        def follow() -> None:
            tensor.copy_(make())

        for base in bases:
            self.notes.registry.follow(base, follow)
        return tensor

    def bank(self, name: str, count: int, columns: RankShare) -> torch.Tensor:
        """Read a tensor [count, columns], or the rank's columns of it, in the model's dtype."""
        own = OwnedPart.of(1, (columns,))
        target = self.modules.read(name, (count, columns.length), own)
        self.notes.tensor(target, own)
        return target

    def fixed(self, name: str, length: int) -> torch.Tensor:
        """Read integers int64 [length], which can only be written as they are."""
        target = torch.empty(length, dtype=torch.int64, device=self.device)
        fill(self._source, target, name, None)
        self.notes.registry.hold(self.notes.registry.take())
        return target

    def matrix(self, name: str, rows: RankShare, width: int) -> torch.Tensor:
        """Read a matrix, or the rank's rows of it, in the model's dtype."""
        return self.channels(name, (rows,), width)

    def product(self, projections: Sequence[Projection], inputs: RankShare) -> WeightProduct:
        """Read projections of the same input as one product, their outputs in order.

        Where ranks divide the inputs its results are parts of a sum, see `output`.

        Raises:
            ModelError: a tensor is missing, or is not what it must be.
        """
        product = self._projections.read(projections, inputs)
        outputs = sum(projection.num_channels for projection in projections)
        self.num_in_layers += outputs * inputs.length
        stacks = None if self.adapters is None else self.adapters.add(projections, inputs)
        if self.adapters is None or stacks is None:
            return product
        return AdaptedProduct(product, stacks, self.adapters.active)

    def linear(self, projections: Sequence[Projection], inputs: RankShare) -> Linear:
        """Read a product as the function that multiplies, summed over ranks that divide inputs."""
        return self.sum_of(self.product(projections, inputs).linear, inputs)

    def sum_of(self, linear: Linear, inputs: RankShare) -> Linear:
        """A product as the sum over ranks, where they divide its inputs."""
        is_divided = inputs.length < inputs.whole
        return summed(linear, self.ranks.exchange) if is_divided else linear

    def unquantized(self, name: str, outputs: RankShare, inputs: int) -> torch.Tensor:
        """Read a module's weight [out, in] in the model's dtype, however it is stored."""
        shape = ModuleShape(name, outputs.length, inputs, OwnedPart.of(0, (outputs,)))
        weight = self.modules.unquantized(shape)
        self.notes.dense(shape, lambda: weight, weight.copy_, base=weight)
        return weight

    def laid_out(self, name: str, outputs: RankShare, inputs: int) -> LaidOut:
        """Read what `unquantized` does, laid out for products."""
        shape = ModuleShape(name, outputs.length, inputs, OwnedPart.of(0, (outputs,)))
        weight = LaidOut(self.modules.unquantized(shape), invariant=self.modules.invariant)
        self.notes.dense(shape, weight.plain, weight.assign)
        return weight

    def shared(self, matrix: torch.Tensor, rows: RankShare) -> LaidOut:
        """The rows of a matrix that was read, laid out for products."""
        own = matrix[rows.first : rows.first + rows.length]
        weight = LaidOut(own, invariant=self.modules.invariant)
        if not weight.is_narrow_on_cuda:  # else products read the matrix itself
            self.notes.registry.follow(matrix, lambda: weight.assign(own))
        return weight

    def experts(self, num_experts: int, num_channels: int) -> ExpertStack:
        """Room for the weights of all experts of a layer."""
        return ExpertStack(self.modules.place, num_experts, num_channels)
