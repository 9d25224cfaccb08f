# mypy: allow-untyped-defs, allow-incomplete-defs
"""Products of float8 rows with a float8 weight, both with a scale for each `SPAN` of a row.

    y[t, n] = sum_b sx[t, b] * sw[n, b] * sum_{k in span b} x[t, k] * w[n, k]

The sum of a span is made in the tensor cores, which keep about 14 bits of it (Hopper), the rest in
float32 and in the order of the spans, whatever the number of tokens beyond one.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.product import in_blocks
from engine.kernels.quantized.fp8_blocks import SPAN, Fp8Blocks, quantize_spans
from engine.kernels.quantized.fp8_skinny import fp8_skinny_linear, is_skinny
from engine.kernels.quantized.launch import LaunchShape
from engine.kernels.skinny import Norm
from sampling.device.overlap import begin_next, begin_next_late, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

MAX_TOKENS = 128
"""Most tokens of a program."""
FEW = 64
"""Most tokens that our own kernel takes where the library has a product to offer."""
ALIGNED, SCALES_ALIGNED = 4, 4
"""The library takes tokens by as many, and a weight's scales of inputs."""


class Fp8BlockLinear:
    """Maps x [T, in] to x @ weight.T + bias [T, out], with x quantized by spans.

    Args:
        weight: [out, in]. bias: [out].
        dtype: of the result.
        has_blocks: channels by `SPAN` have equal scales, if they have now, after every `refresh`.
        invariant: a row's bits may not depend on the number of rows: our kernel for some rows
            multiplies them all.
    """

    def __init__(
        self,
        weight: Fp8Blocks,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        *,
        has_blocks: bool = True,
        invariant: bool = False,
    ) -> None:
        self._weight, self._bias, self._dtype = weight, bias, dtype
        self._invariant = invariant
        on_cpu = weight.values.device.type == "cpu"
        self._wide_weight = weight.dequantized() if on_cpu else None
        by_blocks = has_blocks and not invariant
        self._block_scales = _block_scales(weight, dtype) if by_blocks else None

    def refresh(self) -> None:
        """Take over a weight that was written in place."""
        if self._wide_weight is not None:
            self._wide_weight.copy_(self._weight.dequantized())
        if self._block_scales is not None:
            scales = _block_scales(self._weight, self._dtype)
            assert scales is not None
            self._block_scales.copy_(scales)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._block_scales is not None and len(x) > FEW:
            out = _by_library(x, self._weight.values, self._block_scales)
            return out if self._bias is None else out + self._bias
        if self.takes_lone(x):
            return self.lone(x)[0]
        rows = quantize_spans(x.contiguous())
        if self._wide_weight is not None:
            wide, multiply = rows.dequantized(), partial(F.linear, weight=self._wide_weight)
            out = in_blocks(wide, multiply) if self._invariant else multiply(wide)
            out = out.to(self._dtype)
            return out if self._bias is None else out + self._bias
        return fp8_block_linear_triton(rows, self._weight, self._bias, self._dtype)

    def takes_lone(self, x: torch.Tensor) -> bool:
        """Whether `lone` multiplies x [T, in]: a lone row on a GPU."""
        return is_skinny(x) and not self._invariant

    def lone(
        self, x: torch.Tensor, norm: Norm | None = None, *, gated: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Multiply a row as `fp8_skinny_linear` does, with what surrounds the product."""
        return fp8_skinny_linear(x, self._weight, self._bias, self._dtype, norm=norm, gated=gated)


def _block_scales(weight: Fp8Blocks, dtype: torch.dtype) -> torch.Tensor | None:
    """The scales of whole blocks, where the library multiplies by them.

    Returns:
        float32 [S, out / SPAN], of which a column is contiguous: the library takes S only as a
        multiple of `SCALES_ALIGNED`, and reads in / SPAN of them.
    """
    (n, k), device = weight.values.shape, weight.values.device
    if device.type != "cuda" or dtype != torch.bfloat16 or n % SPAN or k % SPAN:
        return None
    scales = weight.scales.view(-1, SPAN, k // SPAN)
    is_whole = bool((scales == scales[:, :1]).all())
    if not is_whole or torch.cuda.get_device_capability(device) != (9, 0):
        return None
    own = scales[:, 0]
    return F.pad(own, (0, -own.shape[1] % SCALES_ALIGNED)).contiguous().t()


def _by_library(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Multiply x [T, in] by a weight [out, in] with scales of whole blocks."""
    num_tokens = len(x)
    rows = quantize_spans(F.pad(x, (0, 0, 0, -num_tokens % ALIGNED)).contiguous())
    out: torch.Tensor = F.scaled_mm(
        rows.values,
        weight.t(),
        rows.scales.t().contiguous().t(),  # tokens are contiguous
        F.ScalingType.BlockWise1x128,
        scales,
        F.ScalingType.BlockWise128x128,
        output_dtype=torch.bfloat16,
    )
    return out[:num_tokens]


@jit(do_not_specialize=["num_tokens"])
def _fp8_block_kernel(
    x,
    x_scales,
    weight,
    weight_scales,
    bias,
    out,
    num_tokens,
    in_features: tl.constexpr,
    out_features: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    TOKENS: tl.constexpr,  # noqa: N803
    SPAN: tl.constexpr,  # noqa: N803
    stages: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program computes ROWS output channels of TOKENS tokens."""
    begin_next(overlap)
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, SPAN)
    here, real = n < out_features, t < num_tokens
    spans: tl.constexpr = (in_features + SPAN - 1) // SPAN
    even: tl.constexpr = in_features % SPAN == 0
    last_n = tl.minimum(n, out_features - 1)
    w_ptr = weight + last_n[:, None].to(tl.int64) * in_features + k[None, :]
    x_ptr = x + t[:, None].to(tl.int64) * in_features + k[None, :]
    ws_ptr, xs_ptr = weight_scales + last_n * spans, x_scales + t.to(tl.int64) * spans
    wait_for_last(overlap)
    total = tl.zeros((ROWS, TOKENS), tl.float32)
    for span in tl.range(0, spans, num_stages=stages):
        if even:
            w_tile, x_tile = tl.load(w_ptr), tl.load(x_ptr, mask=real[:, None], other=0.0)
        else:
            inside = (k + span * SPAN < in_features)[None, :]
            w_tile = tl.load(w_ptr, mask=inside, other=0.0)
            x_tile = tl.load(x_ptr, mask=real[:, None] & inside, other=0.0)
        sums = tl.dot(w_tile, tl.trans(x_tile))
        x_scale = tl.load(xs_ptr + span, mask=real, other=0.0)
        total += sums * tl.load(ws_ptr + span)[:, None] * x_scale[None, :]
        w_ptr += SPAN
        x_ptr += SPAN
    begin_next_late(overlap)
    total = tl.trans(total)
    if bias is not None:
        total = total.to(out.dtype.element_ty).to(tl.float32)
        total += tl.load(bias + n, mask=here, other=0.0).to(tl.float32)[None, :]
    at = t[:, None].to(tl.int64) * out_features + n[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=real[:, None] & here[None, :])


def fp8_block_linear_triton(
    x: Fp8Blocks,
    weight: Fp8Blocks,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    shape: LaunchShape | None = None,
) -> torch.Tensor:
    """Multiply in a kernel, any number of tokens.

    Args:
        x: [T, in]. weight: [out, in]. bias: [out].
        dtype: of the result.
        shape: shape of the launch; None takes one that was measured to be fast.
    """
    (num_tokens, in_features), out_features = x.values.shape, len(weight.values)
    out = torch.empty((num_tokens, out_features), dtype=dtype, device=x.values.device)
    shape = shape or _launch_shape(num_tokens)
    grid = (triton.cdiv(num_tokens, shape.tokens), triton.cdiv(out_features, shape.rows))
    _fp8_block_kernel[grid](
        x.values,
        x.scales,
        weight.values,
        weight.scales,
        bias,
        out,
        num_tokens,
        in_features=in_features,
        out_features=out_features,
        ROWS=shape.rows,
        TOKENS=shape.tokens,
        SPAN=SPAN,
        stages=shape.stages,
        num_warps=shape.warps,
        **overlap_of(out, late=True),
    )
    return out


def _launch_shape(num_tokens: int) -> LaunchShape:
    tokens = min(max(triton.next_power_of_2(num_tokens), 16), MAX_TOKENS)
    if num_tokens > MAX_TOKENS:
        return LaunchShape(128, 8, tokens, 4)
    return LaunchShape(64, 4, tokens, 4)
