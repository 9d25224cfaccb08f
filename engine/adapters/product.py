"""The room beside one product in slots of adapters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from engine.adapters.folder import Factors
from engine.adapters.targets import AdapterTarget
from engine.kernels.lora.stacks import Stacks

ALIGNMENT = 64
"""Numbers that a stack begins at a multiple of."""


class HostAdapter(NamedTuple):
    """An adapter on the host, as it is in a slot: one rank's parts.

    Attributes:
        numbers: [size]. scales: float32 [modules].
    """

    numbers: torch.Tensor
    scales: torch.Tensor


class ProductStacks:
    """The adapters of one product, while the model is read and after.

    Args:
        index: of the product. widths: outputs of its modules.
        rank: of every adapter, as kernels multiply it.
        start, first_scale: where a slot's numbers and scales of the product begin.
        num_experts: 1 for a product of none.
        is_embedding: A is stored by ids, see `Stacks`.

    Attributes:
        stacks: set once all products are known.
    """

    stacks: Stacks

    def __init__(
        self,
        index: int,
        widths: Sequence[int],
        num_inputs: int,
        rank: int,
        start: int,
        first_scale: int,
        num_experts: int = 1,
        *,
        is_embedding: bool = False,
    ) -> None:
        self.index, self.bounds = index, tuple(accumulate(widths, initial=0))
        self._start, self._first_scale = start, first_scale
        self._is_embedding = is_embedding
        modules = (num_inputs, rank) if is_embedding else (len(widths), rank, num_inputs)
        self._shape_of_a = torch.Size((num_experts, *modules))
        self._shape_of_b = torch.Size((num_experts, self.bounds[-1], rank))
        self._shape_of_scales = torch.Size((num_experts, len(widths)))
        self._start_of_b = start + _aligned(self._shape_of_a.numel())
        self.end = self._start_of_b + _aligned(self._shape_of_b.numel())
        self.end_of_scales = first_scale + self._shape_of_scales.numel()

    def a(self, numbers: torch.Tensor) -> torch.Tensor:
        """The part of A in slots [..., size]: [..., E, P, R, in]."""
        return _part(numbers, self._start, self._shape_of_a)

    def b(self, numbers: torch.Tensor) -> torch.Tensor:
        """The part of B in slots [..., size]: [..., E, out, R]."""
        return _part(numbers, self._start_of_b, self._shape_of_b)

    def scales(self, scales: torch.Tensor) -> torch.Tensor:
        """The part of scales in slots [..., modules]: [..., E, P]."""
        return _part(scales, self._first_scale, self._shape_of_scales)

    def over(self, numbers: torch.Tensor, scales: torch.Tensor) -> None:
        """Read slots [S, size] and [S, modules] from now on."""
        parts = self.a(numbers), self.b(numbers), self.scales(scales)
        self.stacks = Stacks(*parts, self.bounds)

    def put(self, adapter: HostAdapter, target: AdapterTarget, factors: Factors) -> None:
        """Write a rank's parts of a module's factors into an adapter."""
        rank, end = len(factors.a), target.first + len(factors.b)
        a = self.a(adapter.numbers)[target.expert]
        if self._is_embedding:
            a[:, :rank] = factors.a.t()
        else:
            a[target.modules, :rank] = factors.a
        self.b(adapter.numbers)[target.expert, target.first : end, :rank] = factors.b
        self.scales(adapter.scales)[target.expert, target.modules] = factors.scale


def _part(slots: torch.Tensor, start: int, shape: torch.Size) -> torch.Tensor:
    """A part of slots [..., size] in a shape."""
    return slots[..., start : start + shape.numel()].view(*slots.shape[:-1], *shape)


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
