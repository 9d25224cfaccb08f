# mypy: allow-untyped-defs, allow-incomplete-defs
"""Products of float8 rows with a float8 weight, each channel and each token with its own scale.

    y[t, n] = sx[t] * sw[n] * sum_k x[t, k] * w[n, k]

Up to `FEW` tokens the product is a stream of weights, and cuBLAS reads them no faster than in
bfloat16 (measured on an H200), so kernels of our own do it: `fp8_skinny` for one token, and here
one whose tile of the tensor cores has the weight's rows as its wide side and the tokens as its
narrow one. Its order of sums does not depend on the number of tokens: sums of `CHUNK` products in
the tensor cores, which keep about 14 bits of them (Hopper), then in float32, in `split` parts that
are added in order. A lone token, summed in float32, and more tokens than `FEW`, which the library
multiplies, have orders of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.fp8 import FP8, Fp8Rows, in_whole_tiles, quantize_rows
from engine.kernels.invariant.product import in_blocks
from engine.kernels.quantized.fp8_skinny import fp8_skinny_linear, is_skinny
from engine.kernels.skinny import Norm
from sampling.device.overlap import (
    begin_next,
    begin_next_late,
    overlap_of,
    prefetch,
    wait_for_last,
)
from sampling.device.triton_support import constexpr, jit, tl, triton

FEW = 128
"""Most tokens that our own kernel takes where the library has a product to offer."""
CHUNK = 128
"""Products that are summed in the tensor cores before float32 takes over."""
ROWS, DEPTH = 64, 128
"""Output channels of a program, and input features of one step of its loop."""
MANY_PROGRAMS = 96
"""Programs that fill a large GPU: with fewer, two share a sum."""
AT_ONCE = 264
"""Programs that an H200 runs at once, two a processor."""

_CHUNK = constexpr(CHUNK)


class Fp8Linear:
    """Maps x [T, in] to x @ weight.T + bias [T, out], with x quantized by tokens.

    Args:
        weight: [out, in], a scale an output channel.
        bias: [out].
        dtype: of the result.
        rounding: how x is quantized.
        invariant: a row's bits may not depend on the number of rows: our kernel multiplies them
            all.
    """

    def __init__(
        self,
        weight: Fp8Rows,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        rounding: Callable[[torch.Tensor], Fp8Rows] = quantize_rows,
        *,
        invariant: bool = False,
    ) -> None:
        self._invariant = invariant
        self._bias, self._dtype, self._rounding = bias, dtype, rounding
        self._is_wide = _library_can(weight.values, dtype)
        self._weight = weight
        device = weight.values.device
        if device.type == "cpu":  # float8 numbers are exact in float32; CPUs have no float8 product
            self._wide_weight = weight.values.float()
        else:
            self._arrivals = arrivals_of(len(weight.values), device)

    def refresh(self) -> None:
        """Take over a weight that was written in place."""
        if self._weight.values.device.type == "cpu":
            self._wide_weight.copy_(self._weight.values)

    def __call__(self, x: torch.Tensor | Fp8Rows) -> torch.Tensor:
        """Multiply; rows that are quantized already are taken as they are."""
        if isinstance(x, torch.Tensor) and self.takes_lone(x):
            return self.lone(x)[0]
        rows = x if isinstance(x, Fp8Rows) else self._rounding(x)
        if rows.values.device.type == "cpu":
            out = self._on_cpu(rows)
        elif self._is_wide and len(rows.values) > FEW and not self._invariant:
            out = self._by_library(rows)
        elif is_skinny(rows.values) and not self._invariant:
            return fp8_skinny_linear(rows, self._weight, self._bias, self._dtype)[0]
        else:
            return fp8_linear_triton(rows, self._weight, self._arrivals, self._bias, self._dtype)
        return out if self._bias is None else out + self._bias

    def takes_lone(self, x: torch.Tensor) -> bool:
        """Whether `lone` multiplies x [T, in]: a lone row on a GPU, rounded as norms round."""
        return self._rounding is quantize_rows and is_skinny(x) and not self._invariant

    def lone(
        self, x: torch.Tensor, norm: Norm | None = None, *, gated: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Multiply a row as `fp8_skinny_linear` does, with what surrounds the product."""
        return fp8_skinny_linear(x, self._weight, self._bias, self._dtype, norm=norm, gated=gated)

    def _on_cpu(self, rows: Fp8Rows) -> torch.Tensor:
        wide, multiply = rows.values.float(), partial(F.linear, weight=self._wide_weight)
        out = in_blocks(wide, multiply) if self._invariant else multiply(wide)
        return (out * rows.scales[:, None] * self._weight.scales).to(self._dtype)

    def _by_library(self, rows: Fp8Rows) -> torch.Tensor:
        whole = in_whole_tiles(rows)
        out = torch._scaled_mm(
            whole.values,
            self._weight.values.t(),
            scale_a=whole.scales[:, None],
            scale_b=self._weight.scales[None],
            out_dtype=self._dtype,
        )
        return out[: len(rows.values)]


def _library_can(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the library multiplies by this weight with scales by row: bfloat16, sizes by 16."""
    sizes = all(size % 16 == 0 for size in weight.shape)
    return weight.is_cuda and weight.dtype == FP8 and dtype == torch.bfloat16 and sizes


@jit(do_not_specialize=["num_tokens"])
def _fp8_linear_kernel(
    x,
    x_scales,
    weight,
    weight_scales,
    bias,
    out,
    parts,
    arrivals,
    num_tokens,
    in_features: tl.constexpr,
    out_features: tl.constexpr,
    split: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    TOKENS: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr,  # noqa: N803
    stages: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program sums part `program_id(1)` of ROWS output channels of TOKENS tokens."""
    begin_next(overlap)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    t = tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    here, real = n < out_features, t < num_tokens
    steps: tl.constexpr = (in_features + DEPTH * split - 1) // (DEPTH * split)
    even: tl.constexpr = in_features % (DEPTH * split) == 0
    k = tl.program_id(1) * steps * DEPTH + tl.arange(0, DEPTH)
    last_n = tl.minimum(n, out_features - 1)
    w_ptr = weight + last_n[:, None].to(tl.int64) * in_features + k[None, :]
    x_ptr = x + t[:, None].to(tl.int64) * in_features + k[None, :]
    if overlap:
        lines = tl.program_id(1) * steps * DEPTH + tl.arange(0, DEPTH // 128) * 128
        prefetch(weight + last_n[:, None].to(tl.int64) * in_features + lines[None, :])
    scales = tl.load(weight_scales + n, mask=here, other=0.0)
    wait_for_last(overlap)
    total = tl.zeros((ROWS, TOKENS), tl.float32)
    for step in tl.range(0, steps, num_stages=stages):
        # Lanes without a token load nothing: were they to load the last one's numbers, all programs
        # would ask for the same lines at once, which took up to twice as long as the weights.
        if even:
            w_tile, x_tile = tl.load(w_ptr), tl.load(x_ptr, mask=real[:, None], other=0.0)
        else:
            inside = (k + step * DEPTH < in_features)[None, :]
            w_tile = tl.load(w_ptr, mask=inside, other=0.0)
            x_tile = tl.load(x_ptr, mask=real[:, None] & inside, other=0.0)
        total = tl.dot(w_tile, tl.trans(x_tile), total, max_num_imprecise_acc=_CHUNK)
        w_ptr += DEPTH
        x_ptr += DEPTH
    begin_next_late(overlap)
    total = tl.trans(total)
    at = t[:, None].to(tl.int64) * out_features + n[None, :]
    is_last = True
    if split > 1:
        stride = num_tokens.to(tl.int64) * out_features
        is_last, total = _add_parts(total, parts, stride, arrivals, at, real, here, split)
    if is_last:
        _finish(total, x_scales, scales, bias, out, at, t, n, real, here)


@jit
def _add_parts(total, parts, stride, arrivals, at, real, here, split: tl.constexpr):
    """Leave a part [TOKENS, ROWS] of sums; whether it came last, and then all parts' sums."""
    both = real[:, None] & here[None, :]
    tl.store(parts + tl.program_id(1) * stride + at, total, mask=both)
    tl.debug_barrier()  # all of the program's part is written before it counts as there
    counter = arrivals + tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    is_last = tl.atomic_add(counter, 1, sem="acq_rel") == split - 1
    if is_last:
        total = tl.zeros(total.shape, tl.float32)
        for part in tl.static_range(split):
            total += tl.load(parts + part * stride + at, mask=both, other=0.0)
        tl.store(counter, 0)
    return is_last, total


@jit
def _finish(total, x_scales, scales, bias, out, at, t, n, real, here):
    """Scale whole sums [TOKENS, ROWS], add the bias and store them."""
    total = total * tl.load(x_scales + t, mask=real, other=0.0)[:, None] * scales[None, :]
    if bias is not None:
        total = total.to(out.dtype.element_ty).to(tl.float32)
        total += tl.load(bias + n, mask=here, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=real[:, None] & here[None, :])


def fp8_linear_triton(
    x: Fp8Rows,
    weight: Fp8Rows,
    arrivals: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Multiply in our own kernel, any number of tokens.

    Args:
        x: [T, in]. weight: [out, in]. bias: [out].
        arrivals: `arrivals_of`, zeros again afterwards.
        dtype: of the result.
    """
    (num_tokens, in_features), out_features = x.values.shape, len(weight.values)
    out = torch.empty((num_tokens, out_features), dtype=dtype, device=x.values.device)
    num_programs = triton.cdiv(out_features, ROWS)
    # Set by the weight's shape alone, so that sums do not depend on the batch.
    split = 2 if num_programs < MANY_PROGRAMS and in_features >= 8 * DEPTH else 1
    tokens = _tile_of(num_tokens, num_programs * split)
    num_blocks = triton.cdiv(num_tokens, tokens)
    if num_programs * num_blocks > len(arrivals) and split > 1:
        arrivals = torch.zeros(num_programs * num_blocks, dtype=torch.int32, device=out.device)
    parts = torch.empty(split, *out.shape, dtype=torch.float32, device=out.device)
    _fp8_linear_kernel[(num_programs, split, num_blocks)](
        x.values,
        x.scales,
        weight.values,
        weight.scales,
        bias,
        out,
        parts if split > 1 else out,
        arrivals,
        num_tokens,
        in_features=in_features,
        out_features=out_features,
        split=split,
        ROWS=ROWS,
        TOKENS=tokens,
        DEPTH=DEPTH,
        stages=4 if tokens == FEW else 6,  # so that two programs fit a processor
        num_warps=4,
        **overlap_of(out, late=True),
    )
    return out


def arrivals_of(out_features: int, device: torch.device) -> torch.Tensor:
    """Make the counters of a weight's programs that share sums, for up to `FEW` tokens."""
    num_counters = triton.cdiv(out_features, ROWS) * 2  # in two blocks of tokens
    return torch.zeros(num_counters, dtype=torch.int32, device=device)


def _tile_of(num_tokens: int, num_programs: int) -> int:
    """Tokens of a program: more than 64 only where twice the programs would not run at once."""
    tokens = min(max(triton.next_power_of_2(num_tokens), 16), FEW)
    num_blocks = triton.cdiv(num_tokens, 64)
    return 64 if tokens == FEW and num_programs * num_blocks <= AT_ONCE else tokens
