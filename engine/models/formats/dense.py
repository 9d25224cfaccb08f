"""Weights that are not quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from engine.contracts.named_weights import Portion
from engine.kernels.experts.products import DenseExpertProduct
from engine.kernels.linear import LaidOut
from engine.kernels.norm_linear import NormedProduct
from engine.kernels.skinny import is_skinny, takes_norm
from engine.models.formats.part import (
    InputsOfExpert,
    Normed,
    Own,
    Part,
    PartPlaces,
    SkinnyWeight,
    WeightProduct,
)


@dataclass(frozen=True, eq=False)
class DensePart(Part):
    """A weight [out, in] that is not quantized."""

    weight: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.weight,)

    def channels(self, own: Own) -> DensePart:
        return replace(self, weight=self.weight[own])

    def inputs(self, own: slice) -> DensePart:
        return replace(self, weight=self.weight[:, own].contiguous())

    def joined(self, parts: Sequence[Part]) -> DensePart | None:
        dense = [part.weight for part in parts if isinstance(part, DensePart)]
        return replace(self, weight=torch.cat(dense)) if len(dense) == len(parts) else None

    def stacked(
        self, tensors: Sequence[torch.Tensor], inputs: Sequence[InputsOfExpert]
    ) -> DenseExpertProduct:
        return DenseExpertProduct(*tensors)

    def over(self, tensors: Sequence[torch.Tensor]) -> DensePart:
        return replace(self, weight=tensors[0])

    def portions(self, places: PartPlaces) -> dict[str, Portion]:
        return {"values": Portion(self.weight, places.shape, (places.outputs, places.inputs))}

    def dequantized(self) -> torch.Tensor:
        return self.weight.float()

    def product(
        self, bias: torch.Tensor | None, dtype: torch.dtype, *, invariant: bool = False
    ) -> WeightProduct:
        return _DenseProduct(self, bias, invariant)


class _DenseProduct(WeightProduct):
    def __init__(self, part: DensePart, bias: torch.Tensor | None, invariant: bool) -> None:
        self._weight, self._bias = LaidOut(part.weight, invariant=invariant), bias
        self.linear = self._weight.linear(bias)

    def normed(self, norm: torch.Tensor, eps: float) -> Normed:
        return NormedProduct(norm, eps, self._weight, self._bias)

    def gated(self, norm: torch.Tensor, eps: float, *, rounded: bool) -> Normed:
        return NormedProduct(norm, eps, self._weight, self._bias, gated=True)

    def norms_apart(self, x: torch.Tensor) -> bool:
        return not (self._weight.is_narrow_on_cuda and is_skinny(x) and takes_norm(x))

    def skinny_weight(self) -> SkinnyWeight | None:
        if not self._weight.is_narrow_on_cuda:
            return None
        return SkinnyWeight(self._weight.plain(), self._bias)

    def part(self) -> DensePart:
        return DensePart(self._weight.plain())

    def refresh(self, part: Part) -> None:
        self._weight.assign(cast(DensePart, part).weight)
