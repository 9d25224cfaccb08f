# mypy: allow-untyped-defs, allow-incomplete-defs
"""Float8 experts of a few tokens: `few` with weights and inputs in float8.

Numbers are widened to float32 and summed there. A scale belongs to a whole row, or to each `SPAN`
numbers of one. In the former case a program holds rows as one span of all features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.experts.gates import join, num_products, plus_delta
from engine.kernels.experts.routing import Routing
from engine.kernels.experts.weights import Fp8Experts
from engine.kernels.fp8 import Fp8Rows, quantized, quantized_spans
from engine.kernels.quantized.fp8_blocks import SPAN, Fp8Blocks
from engine.kernels.quantized.launch import LaunchShape
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, tl, triton

_SPAN = constexpr(SPAN)


@jit
def store_rounded(
    value,
    values_ptr,
    scales_ptr,
    row,
    width: tl.constexpr,
    num_spans: tl.constexpr,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Round a row of float32 values [BLOCK], zero from `width` on, and store it."""
    k = tl.arange(0, BLOCK)
    if num_spans == 0:
        values, scale = quantized(value)
        tl.store(scales_ptr + row, scale)
    else:
        SPANS: tl.constexpr = BLOCK // _SPAN  # noqa: N806
        spans = tl.arange(0, SPANS)
        values, scales = quantized_spans(tl.reshape(value, (SPANS, _SPAN)))
        tl.store(scales_ptr + row * num_spans + spans, scales, mask=spans < num_spans)
        values = tl.reshape(values, (BLOCK,))
    tl.store(values_ptr + row * width + k, values, mask=k < width)


@jit
def _scales_of(weight_scales, channel, here, span, num_spans: tl.constexpr):
    """The scales of channels: [ROWS, SPANS]."""
    if num_spans == 0:
        scales = tl.load(weight_scales + channel, mask=here, other=0.0)[:, None]
    else:
        both = here[:, None] & (span < num_spans)[None, :]
        at = channel[:, None] * num_spans + span[None, :]
        scales = tl.load(weight_scales + at, mask=both, other=0.0)
    return scales


@jit
def _own_scales(x_scales, row, span, num_spans: tl.constexpr):
    """The scales of an input: [SPANS]."""
    if num_spans == 0:
        scales = tl.load(x_scales + row + 0 * span)
    else:
        scales = tl.load(x_scales + row * num_spans + span, mask=span < num_spans, other=0.0)
    return scales


@jit
def _gate_up_kernel(
    x,
    x_scales,
    ids,
    weight,
    weight_scales,
    bias,
    delta,
    out,
    features: tl.constexpr,
    inner: tl.constexpr,
    num_spans: tl.constexpr,
    top_k: tl.constexpr,
    gate: tl.constexpr,
    products: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    block: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program computes ROWS of a pair's joined features."""
    begin_next(overlap)
    SPANS: tl.constexpr = block.spans  # noqa: N806
    WIDTH: tl.constexpr = block.width  # noqa: N806
    pair = tl.program_id(1).to(tl.int64)
    n, span = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SPANS)
    k = span[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    here, inside = n < inner, k < features
    both = here[:, None, None] & inside[None]
    wait_for_last(overlap)
    channel = tl.load(ids + pair).to(tl.int64) * products * inner + n
    tile_ptr = weight + channel[:, None, None] * features + k[None]
    gate_tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
    gate_scales = _scales_of(weight_scales, channel, here, span, num_spans)
    up_tile, up_scales = gate_tile, gate_scales
    if products == 2:
        tile_ptr += inner * features
        up_tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
        up_scales = _scales_of(weight_scales, channel + inner, here, span, num_spans)
    token = pair // top_k
    value = tl.load(x + token * features + k, mask=inside, other=0.0).to(tl.float32)
    own = _own_scales(x_scales, token, span, num_spans)[None, :]
    gates = tl.sum(tl.sum(gate_tile.to(tl.float32) * value[None], 2) * (gate_scales * own), 1)
    ups = tl.sum(tl.sum(up_tile.to(tl.float32) * value[None], 2) * (up_scales * own), 1)
    if bias is not None:
        gates += tl.load(bias + channel, mask=here, other=0.0).to(tl.float32)
        if products == 2:
            ups += tl.load(bias + channel + inner, mask=here, other=0.0).to(tl.float32)
    if delta is not None:
        at_delta = delta + pair * products * inner + n
        gates = plus_delta(gates, at_delta, here)
        if products == 2:
            ups = plus_delta(ups, at_delta + inner, here)
    joined = join(gates, ups, gate)
    tl.store(out + pair * inner + n, joined.to(out.dtype.element_ty), mask=here)


class _Block(NamedTuple):
    """A row as a program holds it: spans of so many features."""

    spans: int
    width: int


def _block(weights: Fp8Experts) -> _Block:
    features = weights.shape[2]
    if not weights.num_spans:
        return _Block(1, triton.next_power_of_2(features))
    return _Block(triton.next_power_of_2(weights.num_spans), SPAN)


def _launch(block: _Block, *, gated: bool) -> LaunchShape:
    """The launch for rows as a program holds them, all of which must fit into its registers."""
    width = block.spans * block.width
    if width <= 1 << 11:
        return LaunchShape(4 if gated else 8, 8)
    return LaunchShape(1, 8 if width <= 1 << 12 else 16)


def gate_up_few_fp8(
    x: Fp8Rows | Fp8Blocks,
    ids: torch.Tensor,
    weights: Fp8Experts,
    bias: torch.Tensor | None,
    gate: str,
    dtype: torch.dtype,
    shape: LaunchShape | None = None,
    delta: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute joined gate and up products [T * k, inner] of x [T, hidden] and ids [T, k].

    Args:
        x: rounded as `weights` asks. weights, bias, delta: as of `gate_up_few`.
        dtype: of the result.
        shape: shape of the launch; None takes a fast one.
    """
    (num_tokens, top_k), (_, channels, features) = ids.shape, weights.shape
    inner = channels // num_products(gate)
    block = _block(weights)
    shape = shape or _launch(block, gated=True)
    out = torch.empty((num_tokens * top_k, inner), dtype=dtype, device=ids.device)
    _gate_up_kernel[(triton.cdiv(inner, shape.rows), num_tokens * top_k)](
        *x,
        ids,
        weights.values,
        weights.scales,
        bias,
        delta,
        out,
        features=features,
        inner=inner,
        num_spans=weights.num_spans,
        top_k=top_k,
        gate=gate,
        products=num_products(gate),
        ROWS=shape.rows,
        block=block,
        num_warps=shape.warps,
        **overlap_of(out),
    )
    return out


@jit
def _down_kernel(
    x,
    x_scales,
    routing,
    weight,
    weight_scales,
    bias,
    base,
    out,
    inner: tl.constexpr,
    features: tl.constexpr,
    num_spans: tl.constexpr,
    top_k: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    block: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program computes ROWS of a token's output features."""
    begin_next(overlap)
    SPANS: tl.constexpr = block.spans  # noqa: N806
    WIDTH: tl.constexpr = block.width  # noqa: N806
    token = tl.program_id(1).to(tl.int64)
    n, span = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SPANS)
    k = span[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    here, inside = n < features, k < inner
    both = here[:, None, None] & inside[None]
    wait_for_last(overlap)
    # Summed over features at the very end: a sum among warps would hold the next loads up.
    sums = tl.zeros((ROWS, SPANS, WIDTH), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for rank in tl.static_range(top_k):
        pair = token * top_k + rank
        share = tl.load(routing.weights + pair)
        channel = tl.load(routing.ids + pair).to(tl.int64) * features + n
        tile_ptr = weight + channel[:, None, None] * inner + k[None]
        tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
        scales = _scales_of(weight_scales, channel, here, span, num_spans)
        own = _own_scales(x_scales, pair, span, num_spans) * share
        value = tl.load(x + pair * inner + k, mask=inside, other=0.0).to(tl.float32)
        value *= own[:, None]
        sums += tile.to(tl.float32) * scales[:, :, None] * value[None]
        if bias is not None:
            total += share * tl.load(bias + channel, mask=here, other=0.0).to(tl.float32)
    total += tl.sum(tl.sum(sums, 2), 1)
    at = token * features + n
    if base is not None:
        total += tl.load(base + at, mask=here, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=here)


def down_few_fp8(
    x: Fp8Rows | Fp8Blocks,
    routing: Routing,
    weights: Fp8Experts,
    bias: torch.Tensor | None,
    base: torch.Tensor | None,
    dtype: torch.dtype,
    shape: LaunchShape | None = None,
) -> torch.Tensor:
    """Compute the weighted sums [T, hidden] of the down products of x [T * k, inner].

    Args:
        x: rounded as `weights` asks. weights: [experts, hidden, inner]. bias: [experts, hidden].
        base: [T, hidden], added.
        dtype: of the result.
        shape: shape of the launch; None takes a fast one.
    """
    (num_tokens, top_k), (_, features, inner) = routing.ids.shape, weights.shape
    block = _block(weights)
    shape = shape or _launch(block, gated=False)
    out = torch.empty((num_tokens, features), dtype=dtype, device=routing.ids.device)
    _down_kernel[(triton.cdiv(features, shape.rows), num_tokens)](
        *x,
        routing,
        weights.values,
        weights.scales,
        bias,
        base,
        out,
        inner=inner,
        features=features,
        num_spans=weights.num_spans,
        top_k=top_k,
        ROWS=shape.rows,
        block=block,
        num_warps=shape.warps,
        **overlap_of(out),
    )
    return out
