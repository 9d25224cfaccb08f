"""Weights in float8 with a scale a channel; inputs are rounded to float8 too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from engine.contracts.named_weights import Portion
from engine.kernels.experts.products import Fp8ExpertProduct
from engine.kernels.fp8 import Fp8Rows, quantize_rows, quantize_rows_within
from engine.kernels.fp8_linear import Fp8Linear
from engine.kernels.norm_linear import Fp8NormedProduct
from engine.models.formats.part import (
    InputsOfExpert,
    LoneProduct,
    Normed,
    Own,
    Part,
    PartPlaces,
    WeightProduct,
    as_bytes,
)


@dataclass(frozen=True, eq=False)
class Fp8Part(Part):
    """A float8 weight with a scale a channel.

    Attributes:
        input_scale: of all inputs; None makes one for each token.
        largest_input: cut inputs off there before a token's scale is made.
    """

    rows: Fp8Rows
    input_scale: float | None = None
    largest_input: float | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.rows

    @property
    def rounds_as_norms_do(self) -> bool:
        """Whether inputs are rounded as the kernels of norms and activations round."""
        return self.input_scale is None and self.largest_input is None

    @property
    def for_experts(self) -> InputsOfExpert:  # type: ignore[override]
        return InputsOfExpert(scale=self.input_scale)

    @property
    def lack_as_expert(self) -> str | None:  # type: ignore[override]
        if self.largest_input is None:
            return None
        return (
            "experts whose inputs have a bound (activation_scale_ub) are not served; give a model "
            "without it"
        )

    def channels(self, own: Own) -> Fp8Part:
        values, scales = self.rows
        return self.over((as_bytes(values)[own].view(values.dtype), scales[own]))

    def inputs(self, own: slice) -> Fp8Part:
        values, scales = self.rows
        return self.over((as_bytes(values)[:, own].contiguous().view(values.dtype), scales))

    def joined(self, parts: Sequence[Part]) -> Fp8Part | None:
        fp8 = [part for part in parts if isinstance(part, Fp8Part)]
        inputs = {(part.input_scale, part.largest_input) for part in fp8}
        if len(fp8) < len(parts) or len(inputs) > 1:
            return None
        return self.over(join_rows([part.rows for part in fp8]))

    def goes_with(self, part: Part) -> bool:
        if not isinstance(part, Fp8Part):
            return False
        return (self.input_scale is None) == (part.input_scale is None)

    def stacked(
        self, tensors: Sequence[torch.Tensor], inputs: Sequence[InputsOfExpert]
    ) -> Fp8ExpertProduct:
        values, scales = tensors
        noted = [each.scale for each in inputs if each.scale is not None]
        return Fp8ExpertProduct(values, scales, scales.new_tensor(noted) if noted else None)

    def over(self, tensors: Sequence[torch.Tensor]) -> Fp8Part:
        return replace(self, rows=Fp8Rows(*tensors))

    def taking(self, inputs: InputsOfExpert) -> Fp8Part:
        return replace(self, input_scale=inputs.scale)

    def portions(self, places: PartPlaces) -> dict[str, Portion]:
        values, scales = self.rows
        outputs, (num_channels, _) = places.outputs, places.shape
        return {
            "values": Portion(values, places.shape, (outputs, places.inputs)),
            "scales": Portion(scales, (num_channels,), (outputs,)),
        }

    def dequantized(self) -> torch.Tensor:
        return self.rows.dequantized()

    def product(
        self, bias: torch.Tensor | None, dtype: torch.dtype, *, invariant: bool = False
    ) -> WeightProduct:
        if self.rounds_as_norms_do:
            linear = Fp8Linear(self.rows, bias, dtype, invariant=invariant)
            return _Fp8Product(self, linear)
        rounding = partial(quantize_rows_within, scale=self.input_scale, largest=self.largest_input)
        linear = Fp8Linear(self.rows, bias, dtype, rounding, invariant=invariant)
        return LoneProduct(self, linear)


class _Fp8Product(LoneProduct):
    """A product whose inputs the kernels of norms and activations round."""

    takes_rounded = True

    def __init__(self, part: Part, linear: Fp8Linear) -> None:
        super().__init__(part, linear)
        self._fp8 = linear

    def normed(self, norm: torch.Tensor, eps: float) -> Normed:
        return Fp8NormedProduct(norm, eps, self._fp8)

    def norms_apart(self, x: torch.Tensor) -> bool:
        return False

    def gated(self, norm: torch.Tensor, eps: float, *, rounded: bool) -> Normed:
        if not rounded:
            return super().gated(norm, eps, rounded=rounded)
        return Fp8NormedProduct(norm, eps, self._fp8).gated


def join_rows(rows: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Join (float8 values, scales) of several weights, their channels in order."""
    values = torch.cat([as_bytes(values) for values, _ in rows]).view(rows[0][0].dtype)
    return values, torch.cat([scales for _, scales in rows])


def rounded_part(weight: torch.Tensor) -> Fp8Part:
    """Round a weight [out, in], a scale a channel."""
    return Fp8Part(quantize_rows(weight))
