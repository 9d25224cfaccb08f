"""The slots of adapters on the device: beside each product, a stack of A and of B.

All that one adapter has in a slot is one range of one tensor, so that it comes there by one copy.
Products read the stacks at addresses that never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch

from engine.adapters.folder import AdapterTensors
from engine.adapters.targets import AdapterTarget, fit
from engine.kernels.lora.delta import Stacks
from engine.kernels.lora.expand import output_blocks
from engine.kernels.lora.groups import TILE, ActiveAdapters
from engine.models.weights.shares import RankShare

ALIGNMENT = 64
"""Numbers that a stack begins at a multiple of."""


class ProductModule(Protocol):
    """A module of a product, as `Projection` is."""

    @property
    def name(self) -> str: ...

    @property
    def outputs(self) -> tuple[RankShare, ...]: ...

    @property
    def order(self) -> torch.Tensor | None: ...

    @property
    def num_channels(self) -> int: ...


class HostAdapter(NamedTuple):
    """An adapter on the host, as it is in a slot: one rank's parts.

    Attributes:
        numbers: [size]. scales: float32 [modules].
    """

    numbers: torch.Tensor
    scales: torch.Tensor


class ProductStacks:
    """The adapters of one product, while the model is read and after.

    Attributes:
        stacks: set once all products are known.
    """

    stacks: Stacks

    def __init__(
        self, modules: Sequence[ProductModule], num_inputs: int, rank: int, start: int
    ) -> None:
        self.num_inputs, self.rank, self.start = num_inputs, rank, start
        self.bounds = tuple(accumulate((each.num_channels for each in modules), initial=0))
        self.num_modules = len(modules)

    @property
    def size_of_a(self) -> int:
        return _aligned(self.num_modules * self.rank * self.num_inputs)

    @property
    def size(self) -> int:
        """Numbers in a slot."""
        return self.size_of_a + _aligned(self.bounds[-1] * self.rank)

    def a(self, numbers: torch.Tensor) -> torch.Tensor:
        """The part of A in slots [..., size]: [..., P, R, in]."""
        count = self.num_modules * self.rank * self.num_inputs
        part = numbers[..., self.start : self.start + count]
        return part.view(*numbers.shape[:-1], self.num_modules, self.rank, self.num_inputs)

    def b(self, numbers: torch.Tensor) -> torch.Tensor:
        """The part of B in slots [..., size]: [..., out, R]."""
        start = self.start + self.size_of_a
        part = numbers[..., start : start + self.bounds[-1] * self.rank]
        return part.view(*numbers.shape[:-1], self.bounds[-1], self.rank)


class AdapterStacks:
    """The slots of a model's adapters, for those of its modules that products multiply by.

    Args:
        num_slots: adapters that a step can have. max_rank: the largest rank of one.

    Attributes:
        active: of the forward under way.
        targets: modules by name.
    """

    def __init__(self, num_slots: int, max_rank: int) -> None:
        self.num_slots, self.max_rank = num_slots, max_rank
        self.active = ActiveAdapters()
        self.targets: dict[str, AdapterTarget] = {}
        self._rank = max(TILE, 1 << (max_rank - 1).bit_length())  # as kernels multiply it
        self._products: list[ProductStacks] = []

    def add(self, modules: Sequence[ProductModule], inputs: RankShare) -> ProductStacks:
        """Make room for the adapters of a product, which `allocate` fills."""
        start = self._products[-1].start + self._products[-1].size if self._products else 0
        product = ProductStacks(modules, inputs.length, self._rank, start)
        for index, module in enumerate(modules):
            place = len(self._products), index, product.bounds[index]
            target = AdapterTarget.of(module.name, place, module.outputs, inputs, module.order)
            self.targets[module.name] = target
        self._products.append(product)
        return product

    @property
    def size(self) -> int:
        """Numbers of an adapter in a slot."""
        return self._products[-1].start + self._products[-1].size if self._products else 0

    def allocate(self, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate the slots of all products, with zeros in them, when all were added."""
        shape = (self.num_slots, self.size)
        self._numbers = torch.zeros(shape, dtype=dtype, device=device)
        count = sum(product.num_modules for product in self._products)
        self._scales = torch.zeros((self.num_slots, count), device=device)
        first = 0
        for product in self._products:
            product.stacks = Stacks(
                product.a(self._numbers),
                product.b(self._numbers),
                self._scales[:, first : first + product.num_modules],
                torch.from_numpy(output_blocks(product.bounds)).to(device),
                product.bounds,
            )
            first += product.num_modules

    def to_host(self, adapter: AdapterTensors) -> HostAdapter:
        """Lay an adapter out as it is in a slot.

        Raises:
            AdapterError: it is not of this base.
        """
        fitted = fit(adapter, self.targets)
        pinned = self._numbers.is_cuda
        numbers = torch.zeros(self.size, dtype=self._numbers.dtype, pin_memory=pinned)
        scales = torch.zeros(self._scales.shape[1], pin_memory=pinned)
        firsts = list(accumulate((each.num_modules for each in self._products), initial=0))
        for target, factors in fitted:
            product, own = self._products[target.product], target.own(factors)
            rank, end = own.a.shape[0], target.first + own.b.shape[0]
            product.a(numbers)[target.module, :rank] = own.a
            product.b(numbers)[target.first : end, :rank] = own.b
            scales[firsts[target.product] + target.module] = own.scale
        return HostAdapter(numbers, scales)

    def load(self, slot: int, adapter: HostAdapter) -> None:
        """Copy an adapter into a slot, after all that was issued before."""
        self._numbers[slot].copy_(adapter.numbers, non_blocking=True)
        self._scales[slot].copy_(adapter.scales, non_blocking=True)


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
