# mypy: allow-untyped-defs, allow-incomplete-defs
"""Products with weights of 4 bits (`int4`), inputs as they are.

The differences q - z, exact in 16 bits, go through the tensor cores; the sums of each group are
scaled and added in float32. For a few rows `int4_few` does it, for more the kernel here; the order
of neither's sums depends on the number of rows. A lone row is multiplied by `int4_skinny`, in an
order of its own. Beyond `MANY` rows the weight is dequantized,
rounded to the input's type, for the library's product.
"""

from __future__ import annotations

from functools import cache, partial

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.product import few_rows_linear, in_blocks
from engine.kernels.quantized.int4 import RUN, SPAN, Int4Groups
from engine.kernels.quantized.int4_few import MAX_ROWS, int4_few_triton
from engine.kernels.quantized.int4_skinny import int4_skinny_linear
from engine.kernels.quantized.int4_unpack import dequantize_triton, load_zeros, nibbles
from engine.kernels.quantized.launch import LaunchShape
from engine.kernels.skinny import Norm
from sampling.device.overlap import begin_next, begin_next_late, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, tl, triton

MANY = 128
"""Beyond as many rows a weight is dequantized for the library's product (measured on an H200)."""
MAX_TOKENS = 128
"""Most tokens of a program."""

_RUN, _SPAN = constexpr(RUN), constexpr(SPAN)


class Int4Linear:
    """Maps x [T, in] to x @ weight.T + bias [T, out].

    Args:
        order: int64 [in], the input that each column of the weight multiplies; None is as they
            come (GPTQ's act-order sorts them by group).
        invariant: a row's bits may not depend on the number of rows: the kernel for some rows
            multiplies them all.
    """

    def __init__(
        self,
        weight: Int4Groups,
        bias: torch.Tensor | None,
        order: torch.Tensor | None = None,
        *,
        invariant: bool = False,
    ) -> None:
        self._weight, self._bias, self._order = weight, bias, order
        self._invariant = invariant
        on_cpu = weight.words.device.type == "cpu"
        self._wide_weight = weight.dequantized() if on_cpu else None

    def refresh(self) -> None:
        """Take over a weight that was written in place."""
        if self._wide_weight is not None:
            self._wide_weight.copy_(self._weight.dequantized())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._order is not None:
            x = x[:, self._order]
        if self._wide_weight is not None:
            multiply = partial(F.linear, weight=self._wide_weight)
            wide = in_blocks(x.float(), multiply) if self._invariant else multiply(x.float())
            out = wide.to(x.dtype)
            return out if self._bias is None else out + self._bias
        if self._invariant:
            return self._invariantly(x.contiguous())
        if len(x) > MANY or x.dtype == torch.float32:
            return F.linear(x, dequantize_triton(self._weight, x.dtype), self._bias)
        if len(x) == 1:
            return int4_skinny_linear(x.contiguous(), self._weight, self._bias)[0]
        if len(x) <= MAX_ROWS:
            return int4_few_triton(x.contiguous(), self._weight, self._bias)
        return int4_linear_triton(x.contiguous(), self._weight, self._bias)

    def _invariantly(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            return few_rows_linear(x, dequantize_triton(self._weight, x.dtype), self._bias)
        return int4_linear_triton(x, self._weight, self._bias)

    def takes_lone(self, x: torch.Tensor) -> bool:
        """Whether `lone` multiplies x [T, in]: a lone row of 16 bits on a GPU, in its order."""
        is_lone = x.is_cuda and len(x) == 1 and x.dtype.itemsize == 2
        return is_lone and self._order is None and not self._invariant

    def lone(
        self, x: torch.Tensor, norm: Norm | None, *, gated: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Multiply a row as `int4_skinny_linear` does, with what surrounds the product."""
        return int4_skinny_linear(x, self._weight, self._bias, norm=norm, gated=gated)


@jit(do_not_specialize=["num_tokens"])
def _int4_linear_kernel(
    x,
    words,
    scales,
    zeros,
    bias,
    out,
    num_tokens,
    in_features: tl.constexpr,
    out_features: tl.constexpr,
    spans: tl.constexpr,
    group: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    TOKENS: tl.constexpr,  # noqa: N803
    stages: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program computes ROWS channels of TOKENS tokens."""
    begin_next(overlap)
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    here, real = n < out_features, t < num_tokens
    last_n = tl.minimum(n, out_features - 1)
    column = tl.arange(0, _RUN)
    num_groups: tl.constexpr = _SPAN // group
    runs: tl.constexpr = group // _RUN
    even: tl.constexpr = _SPAN * spans == in_features
    dtype: tl.constexpr = x.dtype.element_ty
    w_ptr = words + last_n[:, None].to(tl.int64) * (spans * _RUN) + column[None, :]
    x_ptr = x + t[:, None].to(tl.int64) * in_features + column[None, :]
    group_at = last_n * (spans * num_groups)
    wait_for_last(overlap)
    total = tl.zeros((ROWS, TOKENS), tl.float32)
    for span in tl.range(0, spans, num_stages=stages):
        packed = tl.load(w_ptr + span * _RUN)
        halves = (nibbles(packed, 0, dtype), nibbles(packed, 1, dtype))
        for part in tl.static_range(num_groups):
            at = group_at + span * num_groups + part
            zero = load_zeros(zeros, at, None, dtype)
            scale = tl.load(scales + at).to(tl.float32)
            sums = tl.zeros((ROWS, TOKENS), tl.float32)
            for run in tl.static_range(part * runs, part * runs + runs):
                k = span * _SPAN + run * _RUN
                mask = real[:, None]
                if not even:
                    mask &= (column + k < in_features)[None, :]
                tile = tl.load(x_ptr + k, mask=mask, other=0.0)
                q = halves[run // 4][run % 4] - zero[:, None]
                sums = tl.dot(q, tl.trans(tile), sums, input_precision="ieee")
            total += sums * scale[:, None]
    begin_next_late(overlap)
    total = tl.trans(total)
    if bias is not None:
        total = total.to(dtype).to(tl.float32)
        total += tl.load(bias + n, mask=here, other=0.0).to(tl.float32)[None, :]
    at = t[:, None].to(tl.int64) * out_features + n[None, :]
    tl.store(out + at, total.to(dtype), mask=real[:, None] & here[None, :])


def int4_linear_triton(
    x: torch.Tensor,
    weight: Int4Groups,
    bias: torch.Tensor | None,
    shape: LaunchShape | None = None,
) -> torch.Tensor:
    """Multiply any number of rows through the tensor cores.

    Args:
        x: [T, in], contiguous, of 16 bits.
        weight: [out, in]. bias: [out].
        shape: shape of the launch; None takes one that was measured to be fast.
    """
    num_tokens, out_features = len(x), len(weight.words)
    shape = shape or _launch_shape(num_tokens, x.device)
    out = torch.empty((num_tokens, out_features), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(num_tokens, shape.tokens), triton.cdiv(out_features, shape.rows))
    _int4_linear_kernel[grid](
        x,
        weight.words,
        weight.scales,
        weight.zeros,
        bias,
        out,
        num_tokens,
        in_features=weight.in_features,
        out_features=out_features,
        spans=weight.words.shape[1] // RUN,
        group=weight.group,
        ROWS=shape.rows,
        TOKENS=shape.tokens,
        stages=shape.stages,
        num_warps=shape.warps,
        **overlap_of(x, late=True),
    )
    return out


def _launch_shape(num_tokens: int, device: torch.device) -> LaunchShape:
    tokens = max(triton.next_power_of_2(num_tokens), 16)
    if tokens <= 64 or not _is_hopper(device):
        tokens = min(tokens, 64)
        return LaunchShape(64, 4, tokens, 3 if tokens <= 32 else 2)
    return LaunchShape(128, 8, MAX_TOKENS, 3)


@cache
def _is_hopper(device: torch.device) -> bool:
    """Whether a program of `MAX_TOKENS` tokens fits: 224 KiB of shared memory."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
