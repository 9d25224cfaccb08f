# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code=assignment
"""Products of a lone row with weights of 4 bits, as fast as the weights can be read.

Built as `fp8_skinny` is: programs take tiles of channels one after the other, the first loaded into
registers before the input is there, make that input once for them, and take the norm and the gate
along. A thread has the same inputs of every channel.

A number of 4 bits costs two instructions. Left where it is in its word, with all other bits
cleared, it is a float32 of its own: read as one, q << b is q * 2^(b - 149), a subnormal number or,
up to 2^24, as linear. Nothing is rounded, since a fused multiplication and addition takes
subnormal numbers as they are. Inputs are multiplied by the power of two that brings all b to one
size, `_RAISED`, which leaves what is below 2^-64 of one out of sums and lets inputs be up to 2^63;
zero points are subtracted from a group's sums, times the sum of its inputs.
"""

from __future__ import annotations

import torch

from engine.kernels.quantized.int4 import MIDDLE, RUN, SPAN, Int4Groups
from engine.kernels.quantized.launch import LoneShape, eighths
from engine.kernels.skinny import Norm, gated_with, normed_input
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, tl, triton

_RUN, _NIBBLES, _MIDDLE = (constexpr(v) for v in (RUN, SPAN // RUN, MIDDLE))
_RAISED, _LOWERED = constexpr(64), constexpr(2.0 ** (149 - 64))
# Six nibbles of a word are linear where they are; the other two are moved down by as many.


@jit
def _load_input(
    x,
    residual,
    norm_weight,
    sums,
    eps,
    in_features: tl.constexpr,
    WIDTH: tl.constexpr,  # noqa: N803
):
    """What each of a word's nibbles multiplies, [WIDTH] each, raised."""
    k = tl.arange(0, WIDTH * _NIBBLES)
    first, inside = tl.program_id(0) == 0, k < in_features
    value = normed_input(x, residual, norm_weight, sums, k, inside, eps, in_features, first)
    # A float32 of 2^e has e + 127 in the bits from the 23rd on.
    power = (_RAISED + 127 - 4 * (k // _RUN % _NIBBLES % 6)) << 23
    value = value * power.to(tl.float32, bitcast=True)
    value = tl.permute(tl.reshape(value, (WIDTH // _RUN, _NIBBLES, _RUN)), (1, 0, 2))
    return eighths(tl.reshape(value, (WIDTH * _NIBBLES,)))


@jit
def _load_words(words, row, here, in_words: tl.constexpr, WIDTH: tl.constexpr):  # noqa: N803
    """Load the words [ROWS, WIDTH] of channels."""
    k = tl.arange(0, WIDTH)
    mask = here[:, None]
    if in_words < WIDTH:
        mask = mask & (k < in_words)[None, :]
    at = row[:, None].to(tl.int64) * in_words + k[None, :]
    return tl.load(words + at, mask=mask, other=0, eviction_policy="evict_first")


@jit
def _load_groups(
    scales,
    zeros,
    row,
    here,
    in_words: tl.constexpr,
    num_groups: tl.constexpr,
    WIDTH: tl.constexpr,  # noqa: N803
):
    """Load the scales and zeros [ROWS, spans] of channels, for each group of a span."""
    spans: tl.constexpr = in_words // _RUN
    span = tl.arange(0, WIDTH // _RUN)
    at = (row[:, None] * spans + span[None, :]) * num_groups
    mask = here[:, None] & (span < spans)[None, :]
    scale, zero = (), ()
    for group in tl.static_range(num_groups):
        scale += (tl.load(scales + at + group, mask=mask, other=0.0),)
        if zeros is None:
            zero += (_MIDDLE,)
        else:
            zero += (tl.load(zeros + at + group, mask=mask, other=0),)
    return scale, zero


@jit
def _by_span(values):
    """Sum over spans: [ROWS, WIDTH] to [ROWS, spans]."""
    return tl.sum(tl.reshape(values, (values.shape[0], values.shape[1] // _RUN, _RUN)), 2)


@jit
def _int4_skinny_kernel(
    x,
    residual,
    norm_weight,
    words,
    scales,
    zeros,
    bias,
    out,
    sums,
    eps,
    in_features: tl.constexpr,
    out_features: tl.constexpr,
    in_words: tl.constexpr,
    num_groups: tl.constexpr,
    gated: tl.constexpr,
    tiles: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes `tiles` times ROWS output features."""
    begin_next(overlap)
    first = tl.program_id(0) * (tiles * ROWS)
    end = tl.minimum(first + tiles * ROWS, out_features)
    pair: tl.constexpr = 2 if gated else 1  # a gate's row and its up row are side by side
    i = tl.arange(0, ROWS * pair)
    row, n = first + i // pair + i % pair * out_features, first + tl.arange(0, ROWS)
    here = first + i // pair < end
    tile = _load_words(words, row, here, in_words, WIDTH)
    scale, zero = _load_groups(scales, zeros, row, here, in_words, num_groups, WIDTH)
    wait_for_last(overlap)
    value = _load_input(x, residual, norm_weight, sums, eps, in_features, WIDTH)
    own = ()
    for group in tl.static_range(num_groups):
        inputs = tl.zeros((1, WIDTH), tl.float32)
        for j in tl.static_range(group * 8 // num_groups, (group + 1) * 8 // num_groups):
            inputs += (value[j] * 2.0 ** (4 * (j % 6) - 149))[None, :]
        own += (_by_span(inputs),)
    dtype: tl.constexpr = out.dtype.element_ty
    for step in range(tiles):
        there = first + (step + 1) * ROWS + i // pair < end
        result = tl.zeros((ROWS * pair, WIDTH // _RUN), tl.float32)
        for group in tl.static_range(num_groups):
            total = tl.zeros((ROWS * pair, WIDTH), tl.float32)
            for j in tl.static_range(group * 8 // num_groups, (group + 1) * 8 // num_groups):
                moved = tile if j < 6 else tile >> 24
                number = moved & (15 << 4 * (j % 6))
                total += number.to(tl.float32, bitcast=True) * value[j][None, :]
            part = _by_span(total) - zero[group] * own[group]
            result += part * (scale[group].to(tl.float32) * _LOWERED)
        result = tl.sum(result, 1)
        if bias is not None:
            result = result.to(dtype).to(tl.float32)
            result += tl.load(bias + row, mask=here, other=0.0).to(tl.float32)
        result = result.to(dtype)
        if gated:
            gate, up = tl.split(tl.reshape(result, (ROWS, 2)))
            result = gated_with(gate, up)
        tl.store(out + n, result, mask=n < end)
        row, n, here = row + ROWS, n + ROWS, there
        tile = _load_words(words, row, here, in_words, WIDTH)
        scale, zero = _load_groups(scales, zeros, row, here, in_words, num_groups, WIDTH)


def int4_skinny_linear(
    x: torch.Tensor,
    weight: Int4Groups,
    bias: torch.Tensor | None,
    *,
    norm: Norm | None = None,
    gated: bool = False,
    shape: LoneShape | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply one row by a weight, with the norm and the gate around the product.

    Args:
        x: [1, in_features], contiguous.
        weight: [out_features, in_features]; gated, [gate rows, then up rows].
        bias: [len(weight.words)].
        shape: shape of the launch; None takes one that was measured to be fast.

    Returns:
        The product [1, out_features], and x + residual (x itself without a residual).
    """
    num_rows, in_features = x.shape
    assert num_rows == 1
    out_features = len(weight.words) // 2 if gated else len(weight.words)
    in_words = weight.words.shape[1]
    width = triton.next_power_of_2(in_words)
    shape = shape or launch_shape(width, gated=gated)
    tiles = triton.cdiv(out_features, shape.rows * shape.programs)
    out = torch.empty((1, out_features), dtype=x.dtype, device=x.device)
    residual = norm.residual if norm else None
    sums = x if residual is None else torch.empty_like(x)
    _int4_skinny_kernel[(triton.cdiv(out_features, tiles * shape.rows),)](
        x,
        residual,
        norm.weight if norm else None,
        weight.words,
        weight.scales,
        weight.zeros,
        bias,
        out,
        sums,
        norm.eps if norm else 0.0,
        in_features=in_features,
        out_features=out_features,
        in_words=in_words,
        num_groups=SPAN // weight.group,
        gated=gated,
        tiles=tiles,
        ROWS=shape.rows,
        WIDTH=width,
        **shape.options,
        **overlap_of(x),
    )
    return out, sums


def launch_shape(width: int, *, gated: bool) -> LoneShape:
    """The fast shape of a launch for channels of `width` words, a power of two."""
    rows, warps, programs = (8, 4, 528) if width <= 1 << 9 else (8, 16, 132)
    return LoneShape(rows // 2 if gated else rows, warps, programs)
