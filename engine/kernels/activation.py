# mypy: allow-untyped-defs, allow-incomplete-defs
"""The gated activation of the Llama family."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.overlap import begin_next, overlap_of, wait_for_last
from sampling.triton_support import jit, tl, triton

COLUMNS = 1024
"""Number of columns that a program computes."""


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Compute silu(gate) * up of gate_up [T, 2 * m], the gate in the first half → [T, m].

    silu is computed in float32 and rounded to the input's dtype before it multiplies.
    """
    if gate_up.is_cuda:
        return silu_and_mul_triton(gate_up)
    return silu_and_mul_torch(gate_up)


def silu_and_mul_torch(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


@jit
def _silu_and_mul_kernel(
    gate_up_ptr,
    out_ptr,
    width,
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes BLOCK of a row's `width` output columns."""
    begin_next(overlap)
    wait_for_last(overlap)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate_ptr = gate_up_ptr + row * 2 * width + columns
    gate = tl.load(gate_ptr, mask=inside, other=0.0)
    up = tl.load(gate_ptr + width, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    out = (silu.to(tl.float32) * up).to(gate.dtype)
    tl.store(out_ptr + row * width + columns, out, mask=inside)


def silu_and_mul_triton(gate_up: torch.Tensor) -> torch.Tensor:
    """Compute `silu_and_mul` in a kernel; gate_up contiguous."""
    assert gate_up.is_contiguous()
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, width), dtype=gate_up.dtype, device=gate_up.device)
    grid = (num_rows, triton.cdiv(width, COLUMNS))
    _silu_and_mul_kernel[grid](
        gate_up, out, width, BLOCK=COLUMNS, num_warps=4, **overlap_of(gate_up)
    )
    return out
