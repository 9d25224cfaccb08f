"""Weights of 4 bits with a scale a group, inputs as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.contracts.named_weights import Portion
from engine.kernels.experts.nibbles import INT4, dequantized
from engine.kernels.experts.products import Int4ExpertProduct
from engine.kernels.quantized.int4 import MIDDLE, Int4Groups, pack
from engine.kernels.quantized.int4_linear import Int4Linear
from engine.models.formats.ordered import ordered_inputs
from engine.models.formats.part import (
    InputsOfExpert,
    LoneProduct,
    Own,
    Part,
    PartPlaces,
    WeightProduct,
    groups_of,
)


@dataclass(frozen=True, eq=False)
class Int4Part(Part):
    """A 4-bit weight.

    Attributes:
        order: int64 [columns], the input of each column, None as they come. Every input has one;
            further ones are of weight 0.
        code: what four bits stand for, see `nibbles`.
    """

    groups: Int4Groups
    order: torch.Tensor | None = None
    code: str = INT4

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(each for each in self.groups[:3] if each is not None)

    @property
    def for_experts(self) -> InputsOfExpert:  # type: ignore[override]
        return InputsOfExpert(order=self.order)

    def channels(self, own: Own) -> Int4Part:
        return self.over([each[own] for each in self.tensors])

    def inputs(self, own: slice) -> Int4Part:
        if self.order is not None:
            return Int4Part(*ordered_inputs(self.groups, self.order, own))
        kept = groups_of(own, self.groups.group, self.groups.in_features)
        _, scales, zeros, group, _ = self.groups
        zeros = None if zeros is None else zeros[:, kept].contiguous()
        numbers = self.groups.numbers()[:, own]
        return Int4Part(pack(numbers, scales[:, kept].contiguous(), zeros, group))

    def in_group_order(self) -> tuple[Int4Part, torch.Tensor | None]:
        return Int4Part(self.groups), self.order

    def joined(self, parts: Sequence[Part]) -> Int4Part | None:
        int4 = [part for part in parts if isinstance(part, Int4Part)]
        if len(int4) < len(parts) or not all(self._has_kind_of(part) for part in int4):
            return None
        has_zeros = any(part.groups.zeros is not None for part in int4)
        pieces = [part.with_zeros() if has_zeros else part for part in int4]
        tensors = zip(*(part.tensors for part in pieces), strict=True)
        return pieces[0].over([torch.cat(each) for each in tensors])

    def _has_kind_of(self, part: Int4Part) -> bool:
        kinds = [(own.groups.group, own.groups.scales.dtype) for own in (self, part)]
        return is_same_order(self.order, part.order) and kinds[0] == kinds[1]

    def with_zeros(self) -> Int4Part:
        """The same weight with zero points, which a symmetric one has not stored."""
        groups = self.groups
        if groups.zeros is not None:
            return self
        device = groups.words.device
        zeros = torch.full(groups.scales.shape, MIDDLE, dtype=torch.uint8, device=device)
        return replace(self, groups=groups._replace(zeros=zeros))

    def goes_with(self, part: Part) -> bool:
        if not isinstance(part, Int4Part):
            return False
        kinds = [(own.groups.group, own.groups.scales.dtype) for own in (self, part)]
        has_zeros = [own.groups.zeros is None for own in (self, part)]
        return kinds[0] == kinds[1] and has_zeros[0] == has_zeros[1]

    def stacked(
        self, tensors: Sequence[torch.Tensor], inputs: Sequence[InputsOfExpert]
    ) -> Int4ExpertProduct:
        groups = self.over([each.flatten(0, 1) for each in tensors]).groups
        order = _orders([each.order for each in inputs], groups.in_features, groups.words.device)
        return Int4ExpertProduct(groups, len(inputs), self.code, order)

    def over(self, tensors: Sequence[torch.Tensor]) -> Int4Part:
        words, scales, *zeros = tensors
        groups = self.groups._replace(words=words, scales=scales, zeros=zeros[0] if zeros else None)
        return replace(self, groups=groups)

    def taking(self, inputs: InputsOfExpert) -> Int4Part:
        return replace(self, order=inputs.order)

    def portions(self, places: PartPlaces) -> dict[str, Portion]:
        columns, outputs = places.inputs, places.outputs
        if self.order is not None:
            columns = columns[self.order.cpu()]
        own = _first_of_each(columns)  # what fills up groups comes after the input itself
        held = places.groups[columns[:: self.groups.group]]
        numbers = self.groups.numbers()[:, own.to(self.groups.words.device)]
        num_channels, num_groups = places.shape[0], int(places.groups.max()) + 1
        portions = {"numbers": Portion(numbers, places.shape, (outputs, columns[own]))}
        for name, each in (("scales", self.groups.scales), ("zeros", self.groups.zeros)):
            if each is not None:
                shape = (num_channels, num_groups)
                portions[name] = Portion(each[:, : len(held)], shape, (outputs, held))
        return portions

    def dequantized(self) -> torch.Tensor:
        wide = dequantized(self.groups, self.code)
        if self.order is None:
            return wide
        num_inputs = int(self.order.max()) + 1
        return wide.new_zeros(len(wide), num_inputs).index_add_(1, self.order, wide)

    def product(
        self, bias: torch.Tensor | None, dtype: torch.dtype, *, invariant: bool = False
    ) -> WeightProduct:
        return LoneProduct(self, Int4Linear(self.groups, bias, self.order, invariant=invariant))

    def copy_(self, part: Part) -> None:
        if isinstance(part, Int4Part) and self.groups.zeros is not None:
            part = part.with_zeros()
        super().copy_(part)


def _first_of_each(values: torch.Tensor) -> torch.Tensor:
    """The index of the first occurrence of each value, int64."""
    ordered, index = torch.sort(values, stable=True)
    is_first = torch.ones(len(values), dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return index[is_first]


def is_same_order(order: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two 4-bit weights have their columns in the same order."""
    if order is None or other is None:
        return order is other
    return torch.equal(order, other)


def _orders(
    orders: Sequence[torch.Tensor | None], width: int, device: torch.device
) -> torch.Tensor | None:
    """The order of each expert's inputs, int32 [experts, in]; None: all are as they come."""
    if all(order is None for order in orders):
        return None
    as_they_come = torch.arange(width, device=device)
    return torch.stack([as_they_come if order is None else order for order in orders]).int()
