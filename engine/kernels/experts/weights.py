"""The weights of all experts of a layer, as kernels read them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.experts.nibbles import INT4, dequantized
from engine.kernels.fp8 import Fp8Rows, empty_rows, quantize_rows
from engine.kernels.quantized.fp8_blocks import Fp8Blocks, empty_blocks, quantize_spans
from engine.kernels.quantized.int4 import Int4Groups


class DenseExperts(NamedTuple):
    """Weights [experts, out, in] that are not quantized.

    Attributes:
        values: [experts, out, in].
    """

    values: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """Number of experts, output and input features."""
        return self.values.shape

    @property
    def scales(self) -> None:
        """Unquantized weights have no scales."""
        return

    @property
    def num_spans(self) -> int:
        """Number of scales of a channel: none."""
        return 0


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
