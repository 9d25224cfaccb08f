# mypy: allow-untyped-defs, allow-incomplete-defs
"""Unpacks weights of 4 bits (`int4`) within kernels, and whole weights."""

from __future__ import annotations

import torch

from engine.kernels.quantized.int4 import MIDDLE, RUN, SPAN, Int4Groups
from sampling.device.triton_support import INTERPRETED, constexpr, jit, tl, triton

_RUN, _SPAN, _MIDDLE = constexpr(RUN), constexpr(SPAN), constexpr(MIDDLE)
_INTERPRETED = constexpr(INTERPRETED)
_LOW, _TO_HIGH = constexpr(0x5410), constexpr(0x2222)

_UNPACK = """{{
    .reg .b32 both, moved;
    prmt.b32 both, $4, $5, $6;
    lop3.b32 $0, both, 0x000f000f, {one}, 0xea;
    shr.u32 moved, both, 4;
    lop3.b32 $1, moved, 0x000f000f, {one}, 0xea;
    shr.u32 moved, both, 8;
    lop3.b32 $2, moved, 0x000f000f, {one}, 0xea;
    shr.u32 moved, both, 12;
    lop3.b32 $3, moved, 0x000f000f, {one}, 0xea;
}}"""
_UNPACK_BFLOAT16 = constexpr(_UNPACK.format(one="0x43004300"))
_UNPACK_FLOAT16 = constexpr(_UNPACK.format(one="0x64006400"))
_BFLOAT16 = constexpr((tl.bfloat16,) * 4 if tl else ())
_FLOAT16 = constexpr((tl.float16,) * 4 if tl else ())
_OUTPUTS = constexpr("=&r,=&r,=&r,=&r,r,r,r,r")


@jit
def offset_of(dtype: tl.constexpr):
    """What `nibbles` of a type are too large by: the number whose last bit is 1."""
    return 1024.0 if dtype == tl.float16 else 128.0


@jit
def nibbles(words, half, dtype: tl.constexpr):
    """Four nibbles of each word, from the first on or (`half` 1) from the fifth, plus an offset.

    Nothing is converted: nibbles are put where a number that begins with `offset_of(dtype)` has its
    last bits, those of two words at once. The sum is exact, and so is the subtraction of the offset
    together with a zero point.

    Returns:
        Four tiles of `dtype`, in the shape of `words`.
    """
    if _INTERPRETED:
        moved = words >> (16 * half)
        offset: tl.constexpr = offset_of(dtype)
        return (
            ((moved & 15) + offset).to(dtype),
            ((moved >> 4 & 15) + offset).to(dtype),
            ((moved >> 8 & 15) + offset).to(dtype),
            ((moved >> 12 & 15) + offset).to(dtype),
        )
    args = [words, _LOW + half * _TO_HIGH]
    if dtype == tl.float16:
        tiles = tl.inline_asm_elementwise(_UNPACK_FLOAT16, _OUTPUTS, args, _FLOAT16, True, 2)
    else:
        tiles = tl.inline_asm_elementwise(_UNPACK_BFLOAT16, _OUTPUTS, args, _BFLOAT16, True, 2)
    return tiles


@jit
def load_zeros(zeros, at, mask, dtype: tl.constexpr):
    """Load zero points plus the offset of `nibbles`; `zeros` None is a symmetric scheme."""
    if zeros is None:
        zero = tl.full(at.shape, _MIDDLE, tl.float32)
    else:
        zero = tl.load(zeros + at, mask=mask, other=None if mask is None else 0).to(tl.float32)
    return (zero + offset_of(dtype)).to(dtype)


@jit
def _dequantize_kernel(
    words,
    scales,
    zeros,
    out,
    in_features: tl.constexpr,
    spans: tl.constexpr,
    group: tl.constexpr,
    SPANS: tl.constexpr,  # noqa: N803
):
    """A program writes SPANS spans of a channel."""
    n = tl.program_id(0).to(tl.int64)
    span = tl.program_id(1) * SPANS + tl.arange(0, SPANS)
    inside = span < spans
    column = tl.arange(0, _RUN)
    address = words + n * (spans * _RUN) + span[:, None] * _RUN + column[None, :]
    packed = tl.load(address, mask=inside[:, None], other=0)
    for index in tl.static_range(_SPAN // _RUN):
        at = n * (spans * (_SPAN // group)) + (span * _SPAN + index * _RUN) // group
        scale = tl.load(scales + at, mask=inside, other=0.0).to(tl.float32)
        q = (packed >> (4 * index) & 15).to(tl.float32)
        q -= (load_zeros(zeros, at, inside, tl.float32) - offset_of(tl.float32))[:, None]
        k = (span * _SPAN + index * _RUN)[:, None] + column[None, :]
        value = (q * scale[:, None]).to(out.dtype.element_ty)
        tl.store(out + n * in_features + k, value, mask=inside[:, None] & (k < in_features))


def dequantize_triton(weight: Int4Groups, dtype: torch.dtype) -> torch.Tensor:
    """The weight's values [out, in], rounded to `dtype` once."""
    num_channels, spans = len(weight.words), weight.words.shape[1] // RUN
    out = torch.empty((num_channels, weight.in_features), dtype=dtype, device=weight.words.device)
    block = min(triton.next_power_of_2(spans), 16)
    _dequantize_kernel[(num_channels, triton.cdiv(spans, block))](
        weight.words,
        weight.scales,
        weight.zeros,
        out,
        in_features=weight.in_features,
        spans=spans,
        group=weight.group,
        SPANS=block,
        num_warps=4,
    )
    return out
