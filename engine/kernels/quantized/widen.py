# mypy: allow-untyped-defs, allow-incomplete-defs
"""Copies pages of keys and values in float8 into 16 bits, each number as it is read."""

from __future__ import annotations

import torch

from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

COUNT = 2048
"""Numbers that a program copies."""


@jit
def _widen_kernel(
    pages,
    blocks,
    scales,
    out,
    heads: tl.constexpr,
    width: tl.constexpr,
    half: tl.constexpr,
    COUNT: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program copies COUNT numbers of a page's keys or values, `half` of them in all."""
    begin_next(overlap)
    wait_for_last(overlap)
    page, side = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.program_id(2) * COUNT + tl.arange(0, COUNT)
    inside = i < half
    block = tl.load(blocks + page).to(tl.int64)
    value = tl.load(pages + (block * 2 + side) * half + i, mask=inside, other=0.0)
    scale = tl.load(scales + side * heads + i // width % heads, mask=inside, other=0.0)
    value = value.to(tl.float32) * scale
    tl.store(out + (page * 2 + side) * half + i, value.to(out.dtype.element_ty), mask=inside)


def widen_pages(
    pages: torch.Tensor, blocks: torch.Tensor, scales: torch.Tensor, out: torch.Tensor
) -> None:
    """Copy pages[blocks], times their scales, into `out`.

    Args:
        pages: float8 [num_blocks, 2, block_size, kv_heads, D], contiguous; index 1 tells keys from
            values.
        blocks: int32 [N]. scales: float32 [2, kv_heads], powers of two.
        out: [N, 2, block_size, kv_heads, D] of 16 bits, contiguous.
    """
    assert pages.is_contiguous()
    assert out.is_contiguous()
    _, _, block_size, heads, width = pages.shape
    half = block_size * heads * width
    if len(blocks):
        _widen_kernel[(len(blocks), 2, triton.cdiv(half, COUNT))](
            pages,
            blocks,
            scales,
            out,
            heads=heads,
            width=width,
            half=half,
            COUNT=COUNT,
            num_warps=4,
            **overlap_of(out),
        )
