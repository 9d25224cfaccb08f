"""Reads modules' weights as they are stored, or rounds them as they are read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self

import torch

from engine.contracts.named_weights import TensorInfo
from engine.models.formats.dense import DensePart
from engine.models.formats.fp8 import Fp8Part, rounded_part
from engine.models.formats.part import Part
from engine.models.formats.repack import Held, dequantize
from engine.models.weights.shares import OwnedPart, RankShare
from engine.models.weights.stored import WeightSource, fill


class ModuleShape(NamedTuple):
    """A module's weight, of which a rank has a part.

    Attributes:
        name: of the module. num_channels, width: outputs and inputs of the rank's part.
        own: that part; None is all of it.
    """

    name: str
    num_channels: int
    width: int
    own: OwnedPart | None = None

    @property
    def part(self) -> tuple[int, int]:
        """The shape of the rank's part."""
        return self.num_channels, self.width

    @property
    def whole(self) -> tuple[int, int]:
        """The shape of the whole weight."""
        if self.own is None:
            return self.part
        num_channels, width = self.own.whole_shape(self.part)
        return num_channels, width


class Storing(NamedTuple):
    """How what is held of a module becomes the checkpoint's tensors again.

    Attributes:
        groups: makes int64 [in], the group under one scale of each input.
        store, are_numbers: see `WeightUnit`.
    """

    groups: Callable[[], torch.Tensor]
    store: Callable[[Held], dict[str, torch.Tensor]]
    are_numbers: Mapping[str, Callable[[torch.Tensor], bool]] = {}


class PackedExperts(NamedTuple):
    """The weights of all experts, which one tensor holds, or two.

    Attributes:
        name: of the tensor. num_experts: that it holds.
        outputs: the rank's shares of each expert's, in order.
        order: int64, the rank's outputs in the order that the product has them in; None as read.
    """

    name: str
    num_experts: int
    outputs: tuple[RankShare, ...]
    inputs: RankShare
    order: torch.Tensor | None = None

    @property
    def num_channels(self) -> int:
        """Number of an expert's outputs that the rank has."""
        return sum(share.length for share in self.outputs)

    @property
    def expert(self) -> ModuleShape:
        """One expert's weight."""
        own = OwnedPart.of(1, (self.inputs,)) or OwnedPart.of(0, self.outputs)
        return ModuleShape(self.name, self.num_channels, self.inputs.length, own)

    def ordered(self, part: Part) -> Part:
        """An expert's weight as the product has it."""
        return part if self.order is None else part.channels(self.order)


class PlainModules:
    """Modules of a checkpoint that is not quantized.

    Args:
        dtype: of the model.
        invariant: a row's products may not depend on the number of rows.
    """

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        *,
        invariant: bool = False,
    ) -> None:
        self.source, self.dtype, self.device = source, dtype, device
        self.invariant = invariant

    def read(self, name: str, shape: Sequence[int], own: OwnedPart | None = None) -> torch.Tensor:
        """Read a tensor, or a rank's part of it, in the model's dtype."""
        target = torch.empty(tuple(shape), dtype=self.dtype, device=self.device)
        fill(self.source, target, name, own)
        return target

    def part(self, module: ModuleShape, channels: torch.Tensor | None = None) -> Part:
        """Read the weight of one module.

        Args:
            channels: those of the whole weight that are read, int64 [num_channels], in order; None
                are all, or a rank's.

        Raises:
            ModelError: a tensor is missing, or is not what it must be.
        """
        assert channels is None, "no order was read"
        return self._stored_as(self.read(f"{module.name}.weight", module.part, module.own))

    def part_by_groups(self, module: ModuleShape) -> tuple[Part, torch.Tensor | None]:
        """Read the weight of one module with its inputs in the order of their groups (`desc_act`).

        A rank's are then whole groups.

        Returns:
            The weight, and its inputs in the whole weight, int64 [width]; None where they are as of
            `part`.
        """
        return self.part(module), None

    def fused(self, modules: Sequence[ModuleShape]) -> Part:
        """Read the weights of modules of the same input as one, their channels in order."""
        num_channels = sum(module.num_channels for module in modules)
        weight = torch.empty((num_channels, modules[0].width), dtype=self.dtype, device=self.device)
        pieces = torch.split(weight, [module.num_channels for module in modules])
        for piece, module in zip(pieces, modules, strict=True):
            fill(self.source, piece, f"{module.name}.weight", module.own)
        return self._stored_as(weight)

    def bias(self, module: ModuleShape, *, has_bias: bool) -> torch.Tensor | None:
        """Read a bias; None where the module has none."""
        if not has_bias:
            return None
        own = module.own if module.own is not None and module.own.dim == 0 else None
        return self.read(f"{module.name}.bias", (module.num_channels,), own)

    def unquantized(self, module: ModuleShape) -> torch.Tensor:
        """Read the weight of one module in the model's dtype, however it is stored."""
        return self.read(f"{module.name}.weight", module.part, module.own)

    def expert_parts(self, experts: PackedExperts) -> Iterator[Part]:
        """Read the weights [out, in] of all experts, which one tensor [experts, in, out] holds."""
        own = OwnedPart.of(1, (experts.inputs,)) or OwnedPart.of(2, experts.outputs)
        shape = (experts.num_experts, experts.inputs.length, experts.num_channels)
        stored = self.read(experts.name, shape, own)
        for weight in stored:
            yield experts.ordered(self._stored_as(weight.t()))

    def packed_parts(self, experts: PackedExperts) -> Iterator[Part]:
        """Read the weights [out, in] of all experts, which one tensor [experts, out, in] holds."""
        own = OwnedPart.of(2, (experts.inputs,)) or OwnedPart.of(1, experts.outputs)
        shape = (experts.num_experts, experts.num_channels, experts.inputs.length)
        stored = self.read(experts.name, shape, own)
        for weight in stored:
            yield experts.ordered(self._stored_as(weight))

    def over(self, source: WeightSource) -> Self:
        """The same modules, read from another source."""
        modules = copy.copy(self)
        modules.source = source
        return modules

    def held(self, part: Part) -> Part:
        """What a part holds of the whole module; each rank rounds inputs of its own by itself."""
        return part

    def storing(self, module: ModuleShape, tensors: Mapping[str, TensorInfo]) -> Storing:
        """How a module that was read just now is written as `tensors`, those of the checkpoint."""
        return self.storing_rounded(module)

    def storing_rounded(self, module: ModuleShape) -> Storing:
        """How a module is written as one tensor in the model's dtype."""
        groups = partial(torch.arange, module.whole[1])
        name = f"{module.name}.weight"
        return Storing(groups, lambda held: {name: dequantize(held, groups()).to(self.dtype)})

    def storing_experts(
        self, experts: PackedExperts, tensors: Mapping[str, TensorInfo], *, is_transposed: bool
    ) -> Storing:
        """How experts that were read just now are written as `tensors`.

        Args:
            is_transposed: the tensor is [experts, in, out].
        """
        groups = partial(torch.arange, experts.inputs.whole)

        def store(held: Held) -> dict[str, torch.Tensor]:
            parts = (
                {name: each[i] for name, each in held.items()} for i in range(experts.num_experts)
            )
            whole = torch.stack([dequantize(part, groups()).to(self.dtype) for part in parts])
            return {experts.name: whole.transpose(1, 2) if is_transposed else whole}

        return Storing(groups, store)

    def as_unquantized(self) -> PlainModules:
        """The modules that are read from now on, once more and without their quantization."""
        return PlainModules(self.source, self.dtype, self.device)

    def place(self, module: str) -> str:
        """A module's name for errors, after its file where it is quantized."""
        return module

    def _stored_as(self, weight: torch.Tensor) -> Part:
        return DensePart(weight)


class RoundedModules(PlainModules):
    """Modules that are rounded to float8 as they are read, a scale an output channel."""

    def held(self, part: Part) -> Part:
        return DensePart(part.dequantized().to(self.dtype))

    def _stored_as(self, weight: torch.Tensor) -> Fp8Part:
        return rounded_part(weight)
