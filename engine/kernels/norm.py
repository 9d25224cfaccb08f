# mypy: allow-untyped-defs, allow-incomplete-defs
"""RMSNorm, alone and fused with the residual addition in front of it and quantization after it."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.fp8 import Fp8Rows, empty_rows, quantize_rows, quantized, row_launch
from sampling.device.overlap import begin_next, wait_for_last
from sampling.device.triton_support import jit, tl


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalize: x / sqrt(mean(x²) + eps) * weight over the last dimension.

    Computed in float32. A weight of x's dtype multiplies what is rounded to that, as Llama's; a
    float32 weight multiplies before the result is rounded, as Gemma's.

    Args:
        x: [..., d]. weight: [d] or [heads, d], of x's dtype or float32.
    """
    if x.is_cuda and x.dim() == 2:
        return rms_norm_triton(x, weight, eps)
    return rms_norm_torch(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add and normalize: (rms_norm(x + residual), x + residual).

    The sum, in x's dtype, is written over `residual`.

    Args:
        x, residual: [T, d] of one dtype. weight: [d], as of `rms_norm`.
    """
    if x.is_cuda:
        return rms_norm_triton(x, weight, eps, residual), residual
    residual += x
    return rms_norm_torch(residual, weight, eps), residual


def rms_norm_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.to(weight.dtype)
    if wide.dtype == torch.float32 and not x.is_cuda:
        normed = wide * _inverse_rms(wide, eps)
    else:
        normed = F.rms_norm(wide, x.shape[-1:], None, eps)  # a row's bits are its own on a GPU too
    return (normed * weight).to(x.dtype)


def _inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean(x²) + eps) [..., 1] of float32 on a CPU.

    A dot product of each row with itself: it is faster than a mean of torch's own, and its sum has
    one order whatever the number of rows.
    """
    squares: torch.Tensor = torch.linalg.vecdot(x, x)[..., None]
    return squares.mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()


@jit
def by_weight(normed, weight, weight_ptr, like):
    """Multiply what is normed by a weight, both float32, and round as `rms_norm` does.

    Args:
        weight_ptr: where the weight was loaded from. like: has the dtype of the result.
    """
    if weight_ptr.dtype.element_ty != tl.float32:
        normed = normed.to(like.dtype).to(tl.float32)
    return (normed * weight).to(like.dtype)


@jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    scales_ptr,
    x_stride,
    width,
    eps,
    add_residual: tl.constexpr,
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes a row; `width` of its BLOCK columns are real."""
    begin_next(overlap)
    wait_for_last(overlap)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    own = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0)
    x = own.to(tl.float32)
    if add_residual:
        address = residual_ptr + row * width + columns
        x = (x + tl.load(address, mask=inside, other=0.0).to(tl.float32)).to(own.dtype)
        tl.store(address, x, mask=inside)
        x = x.to(tl.float32)
    x *= tl.rsqrt(tl.sum(x * x, 0) / width + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    out = by_weight(x, weight, weight_ptr, own)
    if scales_ptr is not None:
        out, scale = quantized(out.to(tl.float32))
        tl.store(scales_ptr + row, scale)
    tl.store(out_ptr + row * width + columns, out, mask=inside)


def rms_norm_triton(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute the norm in a kernel.

    Args:
        x: [T, d] with unit column stride.
        residual: contiguous; added to x, and overwritten by the sum.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, weight, eps, residual, out, None)
    return out


def rms_norm_fp8(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> Fp8Rows:
    """Compute `rms_norm`, of x + residual where one is given, and quantize its rows.

    Args:
        x: [T, d] with unit column stride. weight: [d].
        residual: [T, d], contiguous; overwritten by the sum.
    """
    if x.is_cuda:
        rows = empty_rows(x.shape[0], x.shape[1], x.device)
        _launch(x, weight, eps, residual, *rows)
        return rows
    if residual is not None:
        x = residual.add_(x)
    return quantize_rows(rms_norm_torch(x, weight, eps))


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    scales: torch.Tensor | None,
) -> None:
    """Launch the kernel; with `scales` [T] it quantizes into `out`."""
    num_rows, width = x.shape
    assert x.stride(1) == 1
    assert residual is None or residual.is_contiguous()
    _rms_norm_kernel[(num_rows,)](
        x,
        x if residual is None else residual,
        weight,
        out,
        scales,
        x.stride(0),
        width,
        eps,
        add_residual=residual is not None,
        **row_launch(x),
    )


def row_squares(x: torch.Tensor) -> torch.Tensor:
    """Sum the squares of each row of x [T, d], unit column stride → float32 [T].

    A row's sum has one order, whatever the number of rows; torch's own on a GPU has not.
    """
    if x.is_cuda:
        return row_squares_triton(x)
    return x.float().square().sum(-1)


@jit
def _squares_kernel(
    x_ptr,
    out_ptr,
    x_stride,
    width,
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes a row; `width` of its BLOCK columns are real."""
    begin_next(overlap)
    wait_for_last(overlap)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + columns, mask=columns < width, other=0.0).to(tl.float32)
    tl.store(out_ptr + row, tl.sum(x * x, 0))


def row_squares_triton(x: torch.Tensor) -> torch.Tensor:
    num_rows, width = x.shape
    assert x.stride(1) == 1
    out = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    _squares_kernel[(num_rows,)](x, out, x.stride(0), width, **row_launch(x))
    return out
