# mypy: allow-untyped-defs, allow-incomplete-defs
"""Inputs of experts' products, as the kernels take them: as they are, or rounded to float8.

Where a checkpoint has given each expert a scale of its inputs, or an order of them (GPTQ's
act-order), a token's input is another one for each of its experts. A row is then made for each pair
of a token and an expert, ahead of a product that knows of neither.
"""

from __future__ import annotations

import torch

from engine.kernels.experts.weights import Fp8Experts, Int4Experts
from engine.kernels.fp8 import Fp8Rows, empty_rows, quantize_rows_by, stored_fp8
from engine.kernels.quantized.fp8_blocks import Fp8Blocks
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

COLUMNS = 1024
"""Number of columns that a program makes."""


def rounded_inputs(
    x: torch.Tensor, ids: torch.Tensor, weights: Fp8Experts, pairs: torch.Tensor | None = None
) -> tuple[Fp8Rows | Fp8Blocks, torch.Tensor]:
    """Round inputs as float8 weights ask for.

    Args:
        x: [R, in], rows of tokens, or of pairs of a token and an expert.
        ids: int32 [T, k], the experts of each token.
        pairs: int32 [R], the pair that each row belongs to, where rows are of pairs in another
            order than theirs.

    Returns:
        The rows, and ids with a line for each of them.
    """
    if weights.input_scales is None:
        return weights.rounded(x), ids.view(len(x), -1)
    make = rounded_pairs_triton if x.is_cuda else rounded_pairs_torch
    return make(x, ids, weights.input_scales, pairs), ids.view(-1, 1)


def ordered_inputs(
    x: torch.Tensor, ids: torch.Tensor, weights: Int4Experts, pairs: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Put inputs into the order of 4-bit weights' columns; as `rounded_inputs`."""
    if weights.order is None:
        return x, ids.view(len(x), -1)
    make = ordered_pairs_triton if x.is_cuda else ordered_pairs_torch
    return make(x, ids, weights.order, pairs), ids.view(-1, 1)


def rounded_pairs_torch(
    x: torch.Tensor, ids: torch.Tensor, scales: torch.Tensor, pairs: torch.Tensor | None
) -> Fp8Rows:
    rows, experts = _pairs(x, ids, pairs)
    return quantize_rows_by(rows, scales[experts])


def ordered_pairs_torch(
    x: torch.Tensor, ids: torch.Tensor, order: torch.Tensor, pairs: torch.Tensor | None
) -> torch.Tensor:
    rows, experts = _pairs(x, ids, pairs)
    return rows.gather(1, order[experts].long())


def _pairs(
    x: torch.Tensor, ids: torch.Tensor, pairs: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A row for each pair, and its expert."""
    experts = ids.flatten() if pairs is None else ids.flatten()[pairs]
    return x.repeat_interleave(ids.numel() // len(x), 0), experts


def rounded_pairs_triton(
    x: torch.Tensor, ids: torch.Tensor, scales: torch.Tensor, pairs: torch.Tensor | None
) -> Fp8Rows:
    """Round a row of x for each pair by its expert's scale, float32 [experts]."""
    rows = empty_rows(ids.numel(), x.shape[1], x.device)
    _launch(x, ids, pairs, None, scales, *rows)
    return rows


def ordered_pairs_triton(
    x: torch.Tensor, ids: torch.Tensor, order: torch.Tensor, pairs: torch.Tensor | None
) -> torch.Tensor:
    """Make a row of x for each pair in its expert's order, int32 [experts, in]."""
    rows = x.new_empty((ids.numel(), x.shape[1]))
    _launch(x, ids, pairs, order, None, rows, None)
    return rows


@jit
def _pairs_kernel(
    x,
    ids,
    pairs,
    order,
    scales,
    out,
    out_scales,
    features: tl.constexpr,
    per_row: tl.constexpr,
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program makes BLOCK columns of a pair's row."""
    begin_next(overlap)
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < features
    wait_for_last(overlap)
    pair = place if pairs is None else tl.load(pairs + place)
    expert = tl.load(ids + pair).to(tl.int64)
    source = column
    if order is not None:
        source = tl.load(order + expert * features + column, mask=inside, other=0)
    value = tl.load(x + place // per_row * features + source, mask=inside, other=0.0)
    if scales is not None:
        scale = tl.load(scales + expert)
        value = stored_fp8(value, scale)
        tl.store(out_scales + place, scale)
    tl.store(out + place * features + column, value, mask=inside)


def _launch(
    x: torch.Tensor,
    ids: torch.Tensor,
    pairs: torch.Tensor | None,
    order: torch.Tensor | None,
    scales: torch.Tensor | None,
    out: torch.Tensor,
    out_scales: torch.Tensor | None,
) -> None:
    assert x.is_contiguous()
    num_pairs, features = out.shape
    block = min(triton.next_power_of_2(features), COLUMNS)
    _pairs_kernel[(num_pairs, triton.cdiv(features, block))](
        x,
        ids,
        pairs,
        order,
        scales,
        out,
        out_scales,
        features=features,
        per_row=num_pairs // len(x),
        BLOCK=block,
        num_warps=4,
        **overlap_of(x),
    )
