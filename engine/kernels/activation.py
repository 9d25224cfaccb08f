# mypy: allow-untyped-defs, allow-incomplete-defs
"""Gates of products: Llama's activation, alone and with quantization after it, and sigmoids."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.fp8 import Fp8Rows, empty_rows, quantize_rows, quantized, row_launch
from engine.kernels.invariant.functions import elementwise
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

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
    return elementwise(F.silu, gate).mul_(up)


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
    out = _activated(gate_up_ptr + row * 2 * width + columns, width, inside)
    tl.store(out_ptr + row * width + columns, out, mask=inside)


@jit
def _silu_and_mul_fp8_kernel(
    gate_up_ptr,
    values_ptr,
    scales_ptr,
    width,
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes and quantizes a row; `width` of its BLOCK output columns are real."""
    begin_next(overlap)
    wait_for_last(overlap)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    out = _activated(gate_up_ptr + row * 2 * width + columns, width, inside)
    values, scale = quantized(out.to(tl.float32))
    tl.store(values_ptr + row * width + columns, values, mask=inside)
    tl.store(scales_ptr + row, scale)


@jit
def _activated(gate_ptr, width, inside):
    """Load gate and up, and compute silu(gate) * up in their dtype, 0 outside."""
    gate = tl.load(gate_ptr, mask=inside, other=0.0)
    up = tl.load(gate_ptr + width, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    return (silu.to(tl.float32) * up).to(gate.dtype)


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


def silu_and_mul_fp8(gate_up: torch.Tensor) -> Fp8Rows:
    """Compute `silu_and_mul` of gate_up [T, 2 * m], contiguous, and quantize its rows [T, m]."""
    if not gate_up.is_cuda:
        return quantize_rows(silu_and_mul_torch(gate_up))
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    rows = empty_rows(num_rows, width, gate_up.device)
    _silu_and_mul_fp8_kernel[(num_rows,)](
        gate_up,
        *rows,
        width,
        **row_launch(gate_up, width),
    )
    return rows


def gate_by_sigmoid(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Multiply x [T, m] by sigmoid(gate), in place.

    The sigmoid is computed in float32 and rounded to the input's dtype before it multiplies.

    Args:
        x: contiguous. gate: [T, m] of x's dtype, with unit column stride.
    """
    if not x.is_cuda:
        return x.mul_(elementwise(torch.sigmoid, gate))
    return gate_by_sigmoid_triton(x, gate)


@jit
def _gate_by_sigmoid_kernel(
    x_ptr,
    gate_ptr,
    gate_stride,
    width,
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes BLOCK of a row's `width` columns."""
    begin_next(overlap)
    wait_for_last(overlap)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=inside, other=0.0)
    gate = tl.load(gate_ptr + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    factor = (1.0 / (1.0 + tl.exp(-gate))).to(x.dtype).to(tl.float32)
    out = (x.to(tl.float32) * factor).to(x.dtype)
    tl.store(x_ptr + row * width + columns, out, mask=inside)


def gate_by_sigmoid_triton(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Compute `gate_by_sigmoid` in a kernel."""
    num_rows, width = x.shape
    assert x.is_contiguous()
    assert gate.stride(1) == 1
    grid = (num_rows, triton.cdiv(width, COLUMNS))
    _gate_by_sigmoid_kernel[grid](
        x, gate, gate.stride(0), width, BLOCK=COLUMNS, num_warps=4, **overlap_of(x)
    )
    return x
