# mypy: allow-untyped-defs, allow-incomplete-defs
"""Attention over two sets of keys as one: softmax is a weighted mean, so means can be joined.

With outputs o and logs s = log2 sum exp of the scores of either set (in base 2),

    o = (o_a 2^s_a + o_b 2^s_b) / (2^s_a + 2^s_b),

computed in float32 relative to the larger of the two logs.
"""

from __future__ import annotations

import torch

from sampling.triton_support import jit, tl, triton

ROWS = 16
"""Heads of tokens a program joins."""


def merge_states(
    a: torch.Tensor, log_a: torch.Tensor, b: torch.Tensor, log_b: torch.Tensor, out: torch.Tensor
) -> None:
    """Join a and b [T, heads, D] with logs float32 [T, heads] into `out`, all contiguous.

    A log is -inf where its set is empty; one of the two must not be.
    """
    if a.is_cuda:
        merge_states_triton(a, log_a, b, log_b, out)
    else:
        merge_states_torch(a, log_a, b, log_b, out)


def merge_states_torch(
    a: torch.Tensor, log_a: torch.Tensor, b: torch.Tensor, log_b: torch.Tensor, out: torch.Tensor
) -> None:
    most = torch.maximum(log_a, log_b)
    weight_a, weight_b = torch.exp2(log_a - most)[..., None], torch.exp2(log_b - most)[..., None]
    out.copy_((a.float() * weight_a + b.float() * weight_b) / (weight_a + weight_b))


@jit(do_not_specialize=["num_rows"])
def _merge_states_kernel(
    a_ptr,
    log_a_ptr,
    b_ptr,
    log_b_ptr,
    out_ptr,
    num_rows,
    width,
    BLOCK: tl.constexpr,  # noqa: N803
    rows: tl.constexpr,
):
    """`rows` rows of `width` columns a program."""
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    some = row < num_rows
    log_a = tl.load(log_a_ptr + row, mask=some, other=0.0)
    log_b = tl.load(log_b_ptr + row, mask=some, other=0.0)
    most = tl.maximum(log_a, log_b)
    weight_a, weight_b = tl.exp2(log_a - most), tl.exp2(log_b - most)
    total = weight_a + weight_b
    columns = tl.arange(0, BLOCK)
    at = row[:, None] * width + columns[None, :]
    inside = some[:, None] & (columns < width)[None, :]
    a = tl.load(a_ptr + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
    out = (a * weight_a[:, None] + b * weight_b[:, None]) / total[:, None]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


def merge_states_triton(
    a: torch.Tensor, log_a: torch.Tensor, b: torch.Tensor, log_b: torch.Tensor, out: torch.Tensor
) -> None:
    assert all(tensor.is_contiguous() for tensor in (a, log_a, b, log_b, out))
    num_rows, width = log_a.numel(), a.shape[-1]
    _merge_states_kernel[(triton.cdiv(num_rows, ROWS),)](
        *(a, log_a, b, log_b, out),
        num_rows,
        width,
        BLOCK=triton.next_power_of_2(width),
        rows=ROWS,
        num_warps=4,
    )
