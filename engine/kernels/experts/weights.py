"""The weights of a layer's experts, as kernels read them, and a product in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.experts.nibbles import INT4, dequantized
from engine.kernels.fp8 import Fp8Rows, empty_rows, quantize_rows, quantize_rows_by
from engine.kernels.quantized.fp8_blocks import Fp8Blocks, empty_blocks, quantize_spans
from engine.kernels.quantized.int4 import Int4Groups


class Fp8Experts(NamedTuple):
    """Weights [experts, out, in] in float8; inputs are rounded to float8 too.

    Attributes:
        values: e4m3 [experts, out, in].
        scales: float32 [experts, out], inputs rounded by token; or [experts, out, ceil(in / SPAN)],
            inputs rounded by spans.
        input_scales: float32 [experts], by which each expert's inputs are rounded in place of
            scales by token.
    """

    values: torch.Tensor
    scales: torch.Tensor
    input_scales: torch.Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Number of experts, output and input features."""
        return self.values.shape

    @property
    def num_spans(self) -> int:
        """Number of scales of a channel; 0 where it has one for all of it."""
        return self.scales.shape[2] if self.scales.dim() == 3 else 0

    def rounded(self, x: torch.Tensor) -> Fp8Rows | Fp8Blocks:
        """Round inputs x [n, in], which are the same for every expert."""
        return quantize_spans(x) if self.num_spans else quantize_rows(x)

    def empty_inputs(self, num_rows: int) -> Fp8Rows | Fp8Blocks:
        """Room for rounded inputs."""
        width, device = self.values.shape[2], self.values.device
        make = empty_blocks if self.num_spans else empty_rows
        return make(num_rows, width, device)

    def linear(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [n, in] by an expert's weight; float32 [n, out]."""
        kind = Fp8Blocks if self.num_spans else Fp8Rows
        weight = kind(self.values[expert], self.scales[expert])
        if self.input_scales is None:
            rounded = self.rounded(x)
        else:
            rounded = quantize_rows_by(x, self.input_scales[expert].expand(len(x)))
        return F.linear(rounded.dequantized(), weight.dequantized())


class Int4Experts(NamedTuple):
    """Weights [experts, out, in] in 4 bits, inputs as they are.

    Attributes:
        groups: all experts' channels, [experts * out, in].
        code: what four bits stand for, see `nibbles`.
        order: int32 [experts, in], the input that each column of an expert's weight multiplies;
            None is as they come.
    """

    groups: Int4Groups
    num_experts: int
    code: str = INT4
    order: torch.Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Number of experts, output and input features."""
        num_channels = len(self.groups.words) // self.num_experts
        return torch.Size((self.num_experts, num_channels, self.groups.in_features))

    def of(self, expert: int) -> torch.Tensor:
        """An expert's weight, float32 [out, in], its columns as they are stored."""
        count, zeros = self.shape[1], self.groups.zeros
        own = slice(expert * count, (expert + 1) * count)
        part = self.groups._replace(
            words=self.groups.words[own],
            scales=self.groups.scales[own],
            zeros=None if zeros is None else zeros[own],
        )
        return dequantized(part, self.code)

    def linear(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [n, in] by an expert's weight; float32 [n, out]."""
        x = x if self.order is None else x[:, self.order[expert].long()]
        return F.linear(x.float(), self.of(expert))


Weights = torch.Tensor | Fp8Experts | Int4Experts
"""Weights of all experts [experts, out, in]."""


class ExpertWeights(NamedTuple):
    """The experts' products.

    Attributes:
        gate_up: [experts, 2 * inner, hidden], gate rows, then up rows.
        down: [experts, hidden, inner].
        gate_up_bias, down_bias: [experts, 2 * inner], [experts, hidden].
        gate: how gate and up are joined, see `gates`.
    """

    gate_up: Weights
    down: Weights
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    gate: str


def expert_linear(
    weights: Weights, expert: int, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Multiply x [n, in] by an expert's weight in plain torch, and add its row of `bias`.

    Returns:
        [n, out], of x's dtype, float32 where the weight is quantized.
    """
    own = None if bias is None else bias[expert]
    if isinstance(weights, torch.Tensor):
        return F.linear(x, weights[expert], own)
    out = weights.linear(expert, x)
    return out if own is None else out + own
