# mypy: allow-untyped-defs, allow-incomplete-defs
"""Numbers in float8 (e4m3) beside a float32 scale for each `SPAN` of a row.

Tokens are quantized as DeepSeek-V3 and what follows it do: s = max(|v|, TINY) / 448 of each span,
q = round(v / s). Weights come with a scale for each block of SPAN x SPAN and are kept with one for
each row of a block, since blocks of projections that become one product need not line up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.fp8 import FP8, over_largest, quantized_spans
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

SPAN = 128


class Fp8Blocks(NamedTuple):
    """Rows in float8, each `SPAN` numbers of a row times a scale.

    Attributes:
        values: e4m3 [n, k], contiguous.
        scales: float32 [n, ceil(k / SPAN)].
    """

    values: torch.Tensor
    scales: torch.Tensor

    def dequantized(self) -> torch.Tensor:
        """The rows' values as float32 [n, k]."""
        wide = self.scales.repeat_interleave(SPAN, dim=1)
        return self.values.float() * wide[:, : self.values.shape[1]]


def quantize_spans(x: torch.Tensor) -> Fp8Blocks:
    """Quantize each `SPAN` numbers of each row of x [n, k], contiguous."""
    return quantize_spans_triton(x) if x.is_cuda else quantize_spans_torch(x)


def quantize_spans_torch(x: torch.Tensor) -> Fp8Blocks:
    num_rows, width = x.shape
    wide = F.pad(x.float(), (0, -width % SPAN)).view(num_rows, -1, SPAN)
    scales = over_largest(wide.abs().amax(-1))
    values = (wide / scales[..., None]).to(FP8).view(num_rows, -1)[:, :width]
    return Fp8Blocks(values.contiguous(), scales)


@jit
def _quantize_spans_kernel(
    x_ptr,
    values_ptr,
    scales_ptr,
    width,
    num_spans,
    SPANS: tl.constexpr,  # noqa: N803
    SPAN: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes SPANS spans of a row."""
    begin_next(overlap)
    wait_for_last(overlap)
    row = tl.program_id(0).to(tl.int64)
    span = tl.program_id(1) * SPANS + tl.arange(0, SPANS)
    k = span[:, None] * SPAN + tl.arange(0, SPAN)[None, :]
    x = tl.load(x_ptr + row * width + k, mask=k < width, other=0.0).to(tl.float32)
    values, scales = quantized_spans(x)
    tl.store(values_ptr + row * width + k, values, mask=k < width)
    tl.store(scales_ptr + row * num_spans + span, scales, mask=span < num_spans)


def quantize_spans_triton(x: torch.Tensor) -> Fp8Blocks:
    """Compute `quantize_spans` in a kernel."""
    assert x.is_contiguous()
    num_rows, width = x.shape
    blocks = empty_blocks(num_rows, width, x.device)
    num_spans = blocks.scales.shape[1]
    spans = min(triton.next_power_of_2(num_spans), 8)
    _quantize_spans_kernel[(num_rows, triton.cdiv(num_spans, spans))](
        x, *blocks, width, num_spans, SPANS=spans, SPAN=SPAN, num_warps=4, **overlap_of(x)
    )
    return blocks


def empty_blocks(num_rows: int, width: int, device: torch.device) -> Fp8Blocks:
    """Allocate rows for a kernel to write."""
    values = torch.empty((num_rows, width), dtype=FP8, device=device)
    return Fp8Blocks(values, torch.empty((num_rows, -(-width // SPAN)), device=device))
