# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code=assignment
"""Products of a lone row with a float8 weight, as fast as the weight can be read.

The sister of `skinny`. What surrounds a product in a decoder comes along, and the rounding of its
input with it, so that a layer takes no more launches than in bfloat16:

    norm    x + residual, RMSNorm, rounding to float8, product
    gated   silu(gate product) * up product, the rows of both in one program

A program takes rows of the weight one tile after the other, and makes its input once for them. A
tile is in registers, cut into `PARTS`, and the first is loaded before the program waits for the
kernel that makes its input. (To ask for the second then, too, keeps the kernel before from its own
numbers: 2.08 for 1.97 ms for the layers of an 8B model on an H200.) Up to 4,096 features a warp
sums rows of its own. Numbers are widened to float32 and summed there, without tensor cores. Scales
are those of `fp8` (a row) or of `fp8_blocks` (`SPAN` numbers of a row); with the latter, sums of
`SPAN` products are scaled and added. Rounding is that of the separate steps (`norm`, `fp8`,
`fp8_blocks`, `activation`).
"""

from __future__ import annotations

import torch

from engine.kernels.fp8 import Fp8Rows, quantized, quantized_spans
from engine.kernels.quantized.fp8_blocks import SPAN, Fp8Blocks
from engine.kernels.quantized.launch import PARTS, LoneShape, eighths
from engine.kernels.skinny import Norm, gated_with, normed_input
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import INTERPRETED, constexpr, jit, tl, triton

_PARTS, _SPAN = constexpr(PARTS), constexpr(SPAN)
_INTERPRETED = constexpr(INTERPRETED)
_DOT = constexpr("""{
    .reg .b16 a, b, c, d;
    .reg .b32 low, high, x_low, x_high;
    .reg .f32 left, right, sum;
    mov.b32 {a, b}, $1;
    cvt.rn.f16x2.e4m3x2 low, a;
    cvt.rn.f16x2.e4m3x2 high, b;
    mov.b32 {c, d}, $2;
    cvt.rn.f16x2.e4m3x2 x_low, c;
    cvt.rn.f16x2.e4m3x2 x_high, d;
    mov.b32 {a, b}, low;
    mov.b32 {c, d}, x_low;
    cvt.f32.f16 left, a;
    cvt.f32.f16 right, c;
    fma.rn.f32 sum, left, right, $3;
    cvt.f32.f16 left, b;
    cvt.f32.f16 right, d;
    fma.rn.f32 sum, left, right, sum;
    mov.b32 {a, b}, high;
    mov.b32 {c, d}, x_high;
    cvt.f32.f16 left, a;
    cvt.f32.f16 right, c;
    fma.rn.f32 sum, left, right, sum;
    cvt.f32.f16 left, b;
    cvt.f32.f16 right, d;
    fma.rn.f32 $0, left, right, sum;
}""")


@jit
def _dot(words, x, total):
    """Add the products of the four float8 numbers of each word with those of x, in float32."""
    if _INTERPRETED:
        for byte in tl.static_range(4):
            left = (words >> 8 * byte & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
            right = (x >> 8 * byte & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
            total += left.to(tl.float32) * right.to(tl.float32)
    else:
        total = tl.inline_asm_elementwise(
            _DOT, "=f,r,r,f", [words, x, total], tl.float32, is_pure=True, pack=1
        )
    return total


@jit
def _load_part(
    words,
    row,
    here,
    part: tl.constexpr,
    in_words: tl.constexpr,
    WIDTH: tl.constexpr,  # noqa: N803
):
    """Load one of the parts of rows of a weight, as words [ROWS, WIDTH]."""
    k = part * WIDTH + tl.arange(0, WIDTH)
    address = words + row[:, None].to(tl.int64) * in_words + k[None, :]
    mask = here[:, None]
    if in_words % WIDTH > 0:
        mask = mask & (k < in_words)[None, :]
    return tl.load(address, mask=mask, other=0, eviction_policy="evict_first")


@jit
def _load_input(
    x,
    x_scales,
    residual,
    norm_weight,
    sums,
    eps,
    in_features: tl.constexpr,
    num_spans: tl.constexpr,
    WIDTH: tl.constexpr,  # noqa: N803
):
    """The parts of the rounded input as words [WIDTH], and its scale or its parts' spans'."""
    size: tl.constexpr = _PARTS * WIDTH
    spans: tl.constexpr = size * 4 // _SPAN
    if x_scales is None:
        k = tl.arange(0, size * 4)
        first, inside = tl.program_id(0) == 0, k < in_features
        wide = normed_input(x, residual, norm_weight, sums, k, inside, eps, in_features, first)
        if num_spans > 0:
            values, scale = quantized_spans(tl.reshape(wide, (spans, _SPAN)))
        else:
            values, scale = quantized(wide)
        value = tl.reshape(values.to(tl.uint8, bitcast=True).to(tl.int32), (size, 2, 2))
        even, odd = tl.split(value)
        first_byte, third = tl.split(even)
        second, fourth = tl.split(odd)
        value = first_byte | second << 8 | third << 16 | fourth << 24
    else:
        k = tl.arange(0, size)
        value = tl.load(x + k, mask=k < in_features // 4, other=0)
        if num_spans > 0:
            span = tl.arange(0, spans)
            scale = tl.load(x_scales + span, mask=span < num_spans, other=0.0)
        else:
            scale = tl.load(x_scales)
    if num_spans > 0:
        scale = eighths(scale)
    return eighths(value), scale


@jit
def _load_scales(
    weight_scales,
    row,
    here,
    num_spans: tl.constexpr,
    SPANS: tl.constexpr,  # noqa: N803
):
    """Load the scales of rows, [ROWS], or those of their spans, [ROWS, SPANS] a part."""
    if num_spans == 0:
        scales = tl.load(weight_scales + row, mask=here, other=0.0)
    else:
        scales = ()
        for part in tl.static_range((num_spans + SPANS - 1) // SPANS):
            span = part * SPANS + tl.arange(0, SPANS)
            at = row[:, None] * num_spans + span[None, :]
            mask = here[:, None] & (span < num_spans)[None, :]
            scales += (tl.load(weight_scales + at, mask=mask, other=0.0),)
    return scales


@jit
def _fp8_skinny_kernel(
    x,
    x_scales,
    residual,
    norm_weight,
    words,
    weight_scales,
    bias,
    out,
    sums,
    eps,
    in_features: tl.constexpr,
    out_features: tl.constexpr,
    num_spans: tl.constexpr,
    gated: tl.constexpr,
    tiles: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes `tiles` times ROWS output features; `num_spans` is 0: scales by row."""
    begin_next(overlap)
    first = tl.program_id(0) * (tiles * ROWS)
    end = tl.minimum(first + tiles * ROWS, out_features)
    in_words: tl.constexpr = in_features // 4
    used: tl.constexpr = (in_words + WIDTH - 1) // WIDTH
    spans: tl.constexpr = WIDTH * 4 // _SPAN
    pair: tl.constexpr = 2 if gated else 1  # a gate's row and its up row are side by side
    i = tl.arange(0, ROWS * pair)
    row, n = first + i // pair + i % pair * out_features, first + tl.arange(0, ROWS)
    here = first + i // pair < end
    tile = ()
    for part in tl.static_range(used):
        tile += (_load_part(words, row, here, part, in_words, WIDTH),)
    scales = _load_scales(weight_scales, row, here, num_spans, spans)
    wait_for_last(overlap)
    value, scale = _load_input(
        x, x_scales, residual, norm_weight, sums, eps, in_features, num_spans, WIDTH
    )
    dtype: tl.constexpr = out.dtype.element_ty
    for step in range(tiles):
        there = first + (step + 1) * ROWS + i // pair < end
        fresh = ()
        total = tl.zeros((ROWS * pair, spans if num_spans > 0 else WIDTH), tl.float32)
        for part in tl.static_range(used):
            own = tl.broadcast_to(value[part][None, :], tile[part].shape)
            if num_spans > 0:
                terms = _dot(tile[part], own, tl.zeros((ROWS * pair, WIDTH), tl.float32))
                terms = tl.sum(tl.reshape(terms, (ROWS * pair, spans, _SPAN // 4)), 2)
                total += terms * scales[part] * scale[part][None, :]
            else:
                total = _dot(tile[part], own, total)
            fresh += (_load_part(words, row + ROWS, there, part, in_words, WIDTH),)
        result = tl.sum(total, 1)
        if num_spans == 0:
            result = result * scale * scales
        if bias is not None:
            result = result.to(dtype).to(tl.float32)
            result += tl.load(bias + row, mask=here, other=0.0).to(tl.float32)
        result = result.to(dtype)
        if gated:
            gate, up = tl.split(tl.reshape(result, (ROWS, 2)))
            result = gated_with(gate, up)
        tl.store(out + n, result, mask=n < end)
        row, n, here, tile = row + ROWS, n + ROWS, there, fresh
        scales = _load_scales(weight_scales, row, here, num_spans, spans)


def is_skinny(x: torch.Tensor) -> bool:
    """Whether `fp8_skinny_linear` is the fastest way for x [T, in_features]; words hold four."""
    return x.is_cuda and len(x) == 1 and x.shape[1] % 4 == 0


def fp8_skinny_linear(
    x: torch.Tensor | Fp8Rows | Fp8Blocks,
    weight: Fp8Rows | Fp8Blocks,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    *,
    norm: Norm | None = None,
    gated: bool = False,
    shape: LoneShape | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply one row by a weight, with the norm, the rounding and the gate around the product.

    Args:
        x: [1, in_features], of `dtype` where a norm is given; or rounded already, with scales of
            the weight's kind.
        weight: [out_features, in_features]; gated, [gate rows, then up rows].
        bias: [len(weight.values)].
        dtype: of the product.
        shape: shape of the launch; None takes one that was measured to be fast.

    Returns:
        The product [1, out_features], and x + residual (x itself without a residual).
    """
    values, x_scales = (x, None) if isinstance(x, torch.Tensor) else x
    num_rows, in_features = values.shape
    assert num_rows == 1
    out_features = len(weight.values) // 2 if gated else len(weight.values)
    num_spans = weight.scales.shape[1] if isinstance(weight, Fp8Blocks) else 0
    block = triton.next_power_of_2(max(in_features, PARTS * SPAN))
    shape = shape or launch_shape(block, gated=gated)
    tiles = triton.cdiv(out_features, shape.rows * shape.programs)
    out = torch.empty((1, out_features), dtype=dtype, device=values.device)
    residual = norm.residual if norm else None
    sums = values if residual is None else torch.empty_like(values)
    _fp8_skinny_kernel[(triton.cdiv(out_features, tiles * shape.rows),)](
        values if x_scales is None else values.view(torch.int32),
        x_scales,
        residual,
        norm.weight if norm else None,
        weight.values.view(torch.int32),
        weight.scales,
        bias,
        out,
        sums,
        norm.eps if norm else 0.0,
        in_features=in_features,
        out_features=out_features,
        num_spans=num_spans,
        gated=gated,
        tiles=tiles,
        ROWS=shape.rows,
        WIDTH=block // 4 // PARTS,
        **shape.options,
        **overlap_of(out),
    )
    return out, sums


def launch_shape(block: int, *, gated: bool) -> LoneShape:
    """The fast shape of a launch for `block` input features, a power of two."""
    rows, registers = max((1 << 15) // block, 4), 96 if block <= 1 << 13 else 128
    return LoneShape(rows // 2 if gated else rows, 8, 264, registers)
