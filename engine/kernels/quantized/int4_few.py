# mypy: allow-untyped-defs, allow-incomplete-defs
"""Products of a few rows with weights of 4 bits, as fast as the weights can be read.

As in `skinny` a program takes whole channels, so that its loads are in flight before the first is
needed, and issues them before it waits for the kernel that makes its input. The tensor cores sum:
they take unpacked weights as they come out of the registers, where sums of float32 numbers, one by
one, would take three times the instructions. Each warp has spans of its own; the sum of a group is
scaled in float32, and sums of groups are added in an order that does not depend on the rows.
"""

from __future__ import annotations

import torch

from engine.kernels.quantized.int4 import RUN, SPAN, Int4Groups
from engine.kernels.quantized.int4_unpack import load_zeros, nibbles
from engine.kernels.quantized.launch import LaunchShape
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, tl, triton

MAX_ROWS = 8
"""Most rows: columns of the tensor cores' narrowest product."""

_RUN, _SPAN, _COLUMNS = constexpr(RUN), constexpr(SPAN), constexpr(MAX_ROWS)


@jit
def _load_words(words, n, span, here, spans: tl.constexpr):
    """Load the words [SPANS, ROWS, RUN] of some spans of channels n."""
    i = tl.arange(0, _RUN)
    at = n[None, :, None].to(tl.int64) * (spans * _RUN) + (span[:, None] * _RUN + i)[:, None, :]
    mask = ((span < spans)[:, None] & here[None, :])[:, :, None]
    return tl.load(words + at, mask=mask, other=0, eviction_policy="evict_first")


@jit
def _load_inputs(x, k, num_rows: tl.constexpr, in_features: tl.constexpr):
    """Load inputs k [SPANS, RUN] of all rows as [SPANS, RUN, columns]; a lone row fills them."""
    inside = k < in_features
    if num_rows == 1:
        value = tl.load(x + k, mask=inside, other=0.0)
        return tl.broadcast_to(value[:, :, None], (k.shape[0], k.shape[1], _COLUMNS))
    row = tl.arange(0, _COLUMNS)
    mask = inside[:, :, None] & (row < num_rows)[None, None, :]
    return tl.load(x + row[None, None, :] * in_features + k[:, :, None], mask=mask, other=0.0)


@jit
def _step_sums(
    x,
    packed,
    scales,
    zeros,
    n,
    span,
    here,
    num_rows: tl.constexpr,
    in_features: tl.constexpr,
    spans: tl.constexpr,
    group: tl.constexpr,
):
    """The sums [ROWS, columns] over some spans of channels n, whose words are `packed`."""
    num_groups: tl.constexpr = _SPAN // group
    runs: tl.constexpr = group // _RUN
    both = (span < spans)[:, None] & here[None, :]
    group_at = n[None, :] * (spans * num_groups) + span[:, None] * num_groups
    dtype: tl.constexpr = x.dtype.element_ty
    first = span[:, None] * _SPAN + tl.arange(0, _RUN)[None, :]
    halves = (nibbles(packed, 0, dtype), nibbles(packed, 1, dtype))
    shape: tl.constexpr = (packed.shape[0], packed.shape[1], _COLUMNS)
    total = tl.zeros(shape, tl.float32)
    for part in tl.static_range(num_groups):
        zero = load_zeros(zeros, group_at + part, both, dtype)
        sums = tl.zeros(shape, tl.float32)
        for run in tl.static_range(part * runs, part * runs + runs):
            tile = _load_inputs(x, first + run * _RUN, num_rows, in_features)
            q = halves[run // 4][run % 4] - zero[:, :, None]
            sums = tl.dot(q, tile, sums, input_precision="ieee")
        scale = tl.load(scales + group_at + part, mask=both, other=0.0).to(tl.float32)
        total += sums * scale[:, :, None]
    return tl.sum(total, 0)


@jit
def _int4_few_kernel(
    x,
    words,
    scales,
    zeros,
    bias,
    out,
    num_rows: tl.constexpr,
    in_features: tl.constexpr,
    out_features: tl.constexpr,
    spans: tl.constexpr,
    group: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    SPANS: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes ROWS channels of all rows, SPANS spans at a time."""
    begin_next(overlap)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here, span = n < out_features, tl.arange(0, SPANS)
    packed = _load_words(words, n, span, here, spans)
    wait_for_last(overlap)
    total = tl.zeros((ROWS, _COLUMNS), tl.float32)
    steps: tl.constexpr = (spans + SPANS - 1) // SPANS
    for step in tl.static_range(steps):
        now = packed
        if step + 1 < steps:
            packed = _load_words(words, n, span + SPANS, here, spans)
        total += _step_sums(
            x, now, scales, zeros, n, span, here, num_rows, in_features, spans, group
        )
        span += SPANS
    if bias is not None:
        total = total.to(out.dtype.element_ty).to(tl.float32)
        total += tl.load(bias + n, mask=here, other=0.0).to(tl.float32)[:, None]
    row = tl.arange(0, _COLUMNS)
    mask = here[:, None] & (row < num_rows)[None, :]
    at = row[None, :] * out_features + n[:, None]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


def int4_few_triton(
    x: torch.Tensor,
    weight: Int4Groups,
    bias: torch.Tensor | None,
    shape: LaunchShape | None = None,
    spans_at_once: int = 16,
) -> torch.Tensor:
    """Multiply up to `MAX_ROWS` rows x [T, in], contiguous, of 16 bits.

    Args:
        weight: [out, in]. bias: [out].
        shape: shape of the launch; None takes one that was measured to be fast.
        spans_at_once: whose words a program holds, a power of two.
    """
    num_rows, out_features = len(x), len(weight.words)
    assert num_rows <= MAX_ROWS
    spans = weight.words.shape[1] // RUN
    shape = shape or LaunchShape(16, 4)
    out = torch.empty((num_rows, out_features), dtype=x.dtype, device=x.device)
    _int4_few_kernel[(triton.cdiv(out_features, shape.rows),)](
        x,
        weight.words,
        weight.scales,
        weight.zeros,
        bias,
        out,
        num_rows=num_rows,
        in_features=weight.in_features,
        out_features=out_features,
        spans=spans,
        group=weight.group,
        ROWS=shape.rows,
        SPANS=min(spans_at_once, max(triton.next_power_of_2(spans), shape.warps)),
        num_warps=shape.warps,
        **overlap_of(x),
    )
    return out
