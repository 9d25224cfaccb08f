# mypy: allow-untyped-defs, allow-incomplete-defs
"""The sum of a token's experts, after products that were grouped by expert."""

from __future__ import annotations

import torch

from engine.kernels.experts.routing import Routing
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

COLUMNS = 1024
"""Number of columns that a program adds."""


@jit
def _sum_kernel(
    x,
    weights,
    base,
    out,
    width: tl.constexpr,
    top_k: tl.constexpr,
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program adds BLOCK columns of a token's pairs."""
    begin_next(overlap)
    wait_for_last(overlap)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros((BLOCK,), tl.float32)
    for rank in tl.static_range(top_k):
        pair = token * top_k + rank
        value = tl.load(x + pair * width + columns, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(weights + pair) * value
    at = token * width + columns
    if base is not None:
        total += tl.load(base + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def weighted_sums(x: torch.Tensor, routing: Routing, base: torch.Tensor | None) -> torch.Tensor:
    """Add the products x [T * k, out] of each token, times its weights, in the order of ranks.

    Args:
        base: [T, out], added last.
    """
    (num_tokens, top_k), width = routing.ids.shape, x.shape[1]
    out = torch.empty((num_tokens, width), dtype=x.dtype, device=x.device)
    _sum_kernel[(num_tokens, triton.cdiv(width, COLUMNS))](
        x,
        routing.weights,
        base,
        out,
        width=width,
        top_k=top_k,
        BLOCK=COLUMNS,
        num_warps=4,
        **overlap_of(x),
    )
    return out
