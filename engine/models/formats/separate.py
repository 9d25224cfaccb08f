"""Weights of one product that no kernel multiplies by together: one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import cast

import torch

from engine.contracts.named_weights import Portion
from engine.kernels.experts.products import ExpertProduct
from engine.kernels.skinny import Norm
from engine.models.formats.part import (
    InputsOfExpert,
    LoneProduct,
    Own,
    Part,
    PartPlaces,
    WeightProduct,
)


@dataclass(frozen=True, eq=False)
class SeparateParts(Part):
    """Parts of other formats, or with other scales of their inputs."""

    parts: tuple[Part, ...]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError("each part has tensors of its own")

    @property
    def num_channels(self) -> int:
        return self._starts[-1]

    @property
    def _starts(self) -> list[int]:
        return list(accumulate((part.num_channels for part in self.parts), initial=0))

    def channels(self, own: Own) -> Part:
        """The channels of one part, or all in another order in which each part's stay together."""
        ranges = list(pairwise(self._starts))
        if isinstance(own, slice):
            for part, (start, end) in zip(self.parts, ranges, strict=True):
                if start <= own.start and own.stop <= end:
                    return part.channels(slice(own.start - start, own.stop - start))
            raise ValueError(f"channels {own.start} to {own.stop} are of several parts")
        orders = [own[start:end] - start for start, end in ranges]
        pairs = zip(self.parts, orders, strict=True)
        return SeparateParts(tuple(part.channels(order) for part, order in pairs))

    def inputs(self, own: slice) -> Part:
        return SeparateParts(tuple(part.inputs(own) for part in self.parts))

    def joined(self, parts: Sequence[Part]) -> Part | None:
        return None

    def stacked(
        self, tensors: Sequence[torch.Tensor], inputs: Sequence[InputsOfExpert]
    ) -> ExpertProduct:
        raise NotImplementedError("experts' products are read one by one")

    def over(self, tensors: Sequence[torch.Tensor]) -> Part:
        raise NotImplementedError("each part has tensors of its own")

    def portions(self, places: PartPlaces) -> dict[str, Portion]:
        raise NotImplementedError("each part has names of its own")

    def dequantized(self) -> torch.Tensor:
        return torch.cat([part.dequantized() for part in self.parts])

    def product(
        self, bias: torch.Tensor | None, dtype: torch.dtype, *, invariant: bool = False
    ) -> WeightProduct:
        widths = [part.num_channels for part in self.parts]
        none: list[torch.Tensor | None] = [None] * len(widths)
        biases = none if bias is None else list(torch.split(bias, widths))
        pairs = zip(self.parts, biases, strict=True)
        return _SeparateProduct(
            [part.product(own, dtype, invariant=invariant) for part, own in pairs]
        )


class _SeparateLinear:
    """Products of the same input, their outputs side by side."""

    def __init__(self, products: Sequence[WeightProduct]) -> None:
        self.products = products

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([product.linear(x) for product in self.products], dim=1)

    def takes_lone(self, x: torch.Tensor) -> bool:
        return False

    def lone(
        self, x: torch.Tensor, norm: Norm | None, *, gated: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError("a lone row is normed by a kernel of its own")

    def refresh(self) -> None:
        pass


class _SeparateProduct(LoneProduct):
    def __init__(self, products: Sequence[WeightProduct]) -> None:
        self._products = products
        super().__init__(SeparateParts(()), _SeparateLinear(products))

    def part(self) -> Part:
        return SeparateParts(tuple(product.part() for product in self._products))

    def refresh(self, part: Part) -> None:
        parts = cast(SeparateParts, part).parts
        for product, own in zip(self._products, parts, strict=True):
            product.refresh(own)


def join(parts: Sequence[Part]) -> Part:
    """Put the parts of one product together, their channels in order."""
    if len(parts) == 1:
        return parts[0]
    return parts[0].joined(parts) or SeparateParts(tuple(parts))
