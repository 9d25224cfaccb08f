# mypy: allow-untyped-defs, allow-incomplete-defs
"""Products of a few rows with a weight, as fast as the weight can be read.

With so few rows a product is a stream of weights past a vector. A program takes whole rows of the
weight, so that all of its loads are in flight before the first is needed, and issues them before
it waits for the kernel that makes its input. What surrounds a product in a decoder comes along:

    norm    x + residual, RMSNorm, product: each program norms the input for itself
    gated   silu(gate product) * up product, the rows of both in one program

Rounding is that of the separate steps (`norm`, `activation`), sums are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.norm import by_weight
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

NUM_ROWS = (1, 2, 4)
"""The numbers of rows that are compiled, all of them before a server is ready."""
MAX_PRODUCT = 14 << 10
"""Largest product of rows and input features; beyond, cuBLAS is faster (measured on an H200)."""
MAX_NORMED = 2 << 10
"""Largest such product where each program normalizes the input; beyond, a norm kernel is faster."""


class Norm(NamedTuple):
    """A residual addition and RMSNorm in front of a product.

    Attributes:
        residual: [T, in_features]; None adds nothing.
        weight: [in_features], of x's dtype or float32, as of `norm.rms_norm`.
    """

    residual: torch.Tensor | None
    weight: torch.Tensor
    eps: float


class SkinnyShape(NamedTuple):
    """The shape of a launch: weight rows and warps of each program."""

    rows: int
    warps: int


def is_skinny(x: torch.Tensor) -> bool:
    """Whether `skinny_linear` is the faster way for x [T, in_features]."""
    return x.is_cuda and x.dtype.itemsize == 2 and len(x) in NUM_ROWS and x.numel() <= MAX_PRODUCT


def takes_norm(x: torch.Tensor) -> bool:
    """Whether the faster way for such an x normalizes it in the product's programs."""
    return x.numel() <= MAX_NORMED


@jit
def normed_input(x, residual, norm_weight, sums, k, inside, eps, features, first):
    """Load a row of the product's input as float32; the first program stores x + residual."""
    own = tl.load(x + k, mask=inside, other=0.0)
    value = own.to(tl.float32)
    if residual is not None:
        other = tl.load(residual + k, mask=inside, other=0.0)
        value = (value + other.to(tl.float32)).to(own.dtype)
        if first:
            tl.store(sums + k, value, mask=inside)
        value = value.to(tl.float32)
    if norm_weight is not None:
        value *= tl.rsqrt(tl.sum(value * value, 0) / features + eps)
        weight = tl.load(norm_weight + k, mask=inside, other=0.0).to(tl.float32)
        value = by_weight(value, weight, norm_weight, own).to(tl.float32)
    return value


@jit
def gated_with(gate, up):
    """silu(gate) * up in the dtype of both; silu is rounded to it before it multiplies."""
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    return (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@jit
def _skinny_kernel(
    x,
    residual,
    norm_weight,
    weight,
    bias,
    out,
    sums,
    eps,
    num_rows: tl.constexpr,
    in_features: tl.constexpr,
    out_features: tl.constexpr,
    gated: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes ROWS output features of all rows."""
    begin_next(overlap)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK)
    here, inside = n < out_features, k < in_features
    both = here[:, None] & inside[None, :]
    tile_ptr = weight + n[:, None].to(tl.int64) * in_features + k[None, :]
    tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
    if gated:
        tile_ptr += out_features * in_features
        up_tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
    wait_for_last(overlap)
    first = tl.program_id(0) == 0
    for row in tl.static_range(num_rows):
        start = row * in_features
        value = normed_input(
            x + start,
            residual if residual is None else residual + start,
            norm_weight,
            sums + start,
            k,
            inside,
            eps,
            in_features,
            first,
        )
        dtype = out.dtype.element_ty
        result = tl.sum(tile.to(tl.float32) * value[None, :], 1)
        if bias is not None:
            result += tl.load(bias + n, mask=here, other=0.0).to(tl.float32)
        if gated:
            up = tl.sum(up_tile.to(tl.float32) * value[None, :], 1)
            if bias is not None:
                up += tl.load(bias + out_features + n, mask=here, other=0.0).to(tl.float32)
            result = gated_with(result.to(dtype), up.to(dtype))
        tl.store(out + row * out_features + n, result.to(dtype), mask=here)


def skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    norm: Norm | None = None,
    gated: bool = False,
    shape: SkinnyShape | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply x [T, in_features] by a weight, with the norm and gate around the product.

    Args:
        weight: [out_features, in_features], contiguous; gated, [gate rows, then up rows].
        bias: [len(weight)].
        shape: shape of the launch; None takes one that was measured to be fast.

    Returns:
        The product [T, out_features], and x + residual (x itself without a residual).
    """
    num_rows, in_features = x.shape
    assert x.is_contiguous()
    out_features = len(weight) // 2 if gated else len(weight)
    block = triton.next_power_of_2(in_features)
    shape = shape or launch_shape(block, gated=gated)
    out = torch.empty((num_rows, out_features), dtype=x.dtype, device=x.device)
    residual = norm.residual if norm else None
    sums = x if residual is None else torch.empty_like(x)
    _skinny_kernel[(triton.cdiv(out_features, shape.rows),)](
        x,
        residual,
        norm.weight if norm else None,
        weight,
        bias,
        out,
        sums,
        norm.eps if norm else 0.0,
        num_rows=num_rows,
        in_features=in_features,
        out_features=out_features,
        gated=gated,
        ROWS=shape.rows,
        BLOCK=block,
        num_warps=shape.warps,
        **overlap_of(x),
    )
    return out, sums


def launch_shape(block: int, *, gated: bool) -> SkinnyShape:
    """The fast shape of a launch for `block` input features, a power of two.

    Fast in a model, not by itself: of narrow weights a program has few threads with much on their
    way each, so that the programs of several kernels have room on a processor at once, and the
    weights of the next are there when the one before has ended. 0.48 ms a forward of a lone row
    for 0.53 with 64 to 256 threads a program, of a 0.6B model on an H200.
    """
    if block >= 1 << 12:
        return SkinnyShape(1, 8)
    if block == 1 << 11:
        return SkinnyShape(1, 4) if gated else SkinnyShape(4, 4)
    return SkinnyShape(2, 2) if gated else SkinnyShape(4, 1)
