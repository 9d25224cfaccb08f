# mypy: allow-untyped-defs, allow-incomplete-defs
"""Experts of 4 bits and a few tokens: `few` with packed weights, inputs as they are.

Weights are unpacked in registers and summed in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.experts.gates import join, num_products, plus_delta
from engine.kernels.experts.nibbles import value_of
from engine.kernels.experts.routing import Routing
from engine.kernels.experts.weights import Int4Experts
from engine.kernels.quantized.int4 import RUN, SPAN
from engine.kernels.quantized.launch import LaunchShape
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, tl, triton

_RUN, _SPAN = constexpr(RUN), constexpr(SPAN)


class Packing(NamedTuple):
    """How a channel is packed: whole spans of it, inputs under one scale, what a nibble means."""

    spans: int
    group: int
    code: str

    @classmethod
    def of(cls, weights: Int4Experts) -> Packing:
        """The packing of weights."""
        groups = weights.groups
        return cls(groups.words.shape[1] // RUN, groups.group, weights.code)


@jit
def _words(words, channel, here, SPANS: tl.constexpr, packing: tl.constexpr):  # noqa: N803
    """Load the words of channels [ROWS, SPANS, RUN]."""
    span = tl.arange(0, SPANS)
    column = span[:, None] * _RUN + tl.arange(0, _RUN)[None, :]
    both = here[:, None] & (span < packing.spans)[None, :]
    address = words + channel[:, None, None] * (packing.spans * _RUN) + column[None]
    return tl.load(address, mask=both[:, :, None], other=0, eviction_policy="evict_first")


@jit
def _run(packed, scales, zeros, channel, here, index: tl.constexpr, packing: tl.constexpr):
    """The weights of a run of each span, float32 [ROWS, SPANS, RUN]."""
    SPANS: tl.constexpr = packed.shape[1]  # noqa: N806
    span = tl.arange(0, SPANS)
    num_groups: tl.constexpr = _SPAN // packing.group
    code: tl.constexpr = packing.code
    at = channel[:, None] * (packing.spans * num_groups) + (span * num_groups)[None, :]
    at += index * _RUN // packing.group
    both = here[:, None] & (span < packing.spans)[None, :]
    scale = tl.load(scales + at, mask=both, other=0.0).to(tl.float32)[:, :, None]
    zero = None
    if zeros is not None:
        zero = tl.load(zeros + at, mask=both, other=0).to(tl.float32)[:, :, None]
    return value_of((packed >> (4 * index)) & 15, zero, code) * scale


@jit
def _gate_up_kernel(
    x,
    ids,
    words,
    scales,
    zeros,
    bias,
    delta,
    out,
    features: tl.constexpr,
    inner: tl.constexpr,
    top_k: tl.constexpr,
    gate: tl.constexpr,
    products: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    SPANS: tl.constexpr,  # noqa: N803
    packing: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program computes ROWS of a pair's joined features."""
    begin_next(overlap)
    pair = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = n < inner
    first = tl.arange(0, SPANS)[:, None] * _SPAN + tl.arange(0, _RUN)[None, :]
    wait_for_last(overlap)
    channel = tl.load(ids + pair).to(tl.int64) * products * inner + n
    gate_words = _words(words, channel, here, SPANS, packing)
    up_words = gate_words
    if products == 2:
        up_words = _words(words, channel + inner, here, SPANS, packing)
    x_ptr = x + pair // top_k * features
    gates = tl.zeros((ROWS, SPANS, _RUN), tl.float32)
    ups = gates
    for index in tl.static_range(_SPAN // _RUN):
        k = first + index * _RUN
        value = tl.load(x_ptr + k, mask=k < features, other=0.0).to(tl.float32)[None]
        gates += _run(gate_words, scales, zeros, channel, here, index, packing) * value
        if products == 2:
            ups += _run(up_words, scales, zeros, channel + inner, here, index, packing) * value
    gate_sums, up_sums = tl.sum(tl.sum(gates, 2), 1), tl.sum(tl.sum(ups, 2), 1)
    if bias is not None:
        gate_sums += tl.load(bias + channel, mask=here, other=0.0).to(tl.float32)
        if products == 2:
            up_sums += tl.load(bias + channel + inner, mask=here, other=0.0).to(tl.float32)
    if delta is not None:
        at_delta = delta + pair * products * inner + n
        gate_sums = plus_delta(gate_sums, at_delta, here)
        if products == 2:
            up_sums = plus_delta(up_sums, at_delta + inner, here)
    joined = join(gate_sums, up_sums, gate)
    tl.store(out + pair * inner + n, joined.to(out.dtype.element_ty), mask=here)


def _launch(packing: Packing) -> LaunchShape:
    """The launch for channels as a program holds them, all of which must fit into registers."""
    if packing.spans <= 8:
        return LaunchShape(8 if packing.spans <= 2 else 2, 4)
    return LaunchShape(1, 4 if packing.spans <= 16 else 16)


def gate_up_few_int4(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: Int4Experts,
    bias: torch.Tensor | None,
    gate: str,
    delta: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute joined gate and up products [T * k, inner] of x [T, hidden] and ids [T, k].

    Args:
        weights, bias, delta: as of `gate_up_few`.
    """
    (num_tokens, top_k), (_, channels, features) = ids.shape, weights.shape
    inner, packing = channels // num_products(gate), Packing.of(weights)
    shape = _launch(packing)
    out = torch.empty((num_tokens * top_k, inner), dtype=x.dtype, device=x.device)
    _gate_up_kernel[(triton.cdiv(inner, shape.rows), num_tokens * top_k)](
        x,
        ids,
        weights.groups.words,
        weights.groups.scales,
        weights.groups.zeros,
        bias,
        delta,
        out,
        features=features,
        inner=inner,
        top_k=top_k,
        gate=gate,
        products=num_products(gate),
        ROWS=shape.rows,
        SPANS=triton.next_power_of_2(packing.spans),
        packing=packing,
        num_warps=shape.warps,
        **overlap_of(x),
    )
    return out


@jit
def _down_kernel(
    x,
    routing,
    words,
    scales,
    zeros,
    bias,
    base,
    out,
    inner: tl.constexpr,
    features: tl.constexpr,
    top_k: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    SPANS: tl.constexpr,  # noqa: N803
    packing: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program computes ROWS of a token's output features."""
    begin_next(overlap)
    token = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = n < features
    first = tl.arange(0, SPANS)[:, None] * _SPAN + tl.arange(0, _RUN)[None, :]
    wait_for_last(overlap)
    sums, total = tl.zeros((ROWS, SPANS, _RUN), tl.float32), tl.zeros((ROWS,), tl.float32)
    for rank in range(top_k):
        pair = token * top_k + rank
        share = tl.load(routing.weights + pair)
        channel = tl.load(routing.ids + pair).to(tl.int64) * features + n
        packed = _words(words, channel, here, SPANS, packing)
        for index in tl.static_range(_SPAN // _RUN):
            k = first + index * _RUN
            value = tl.load(x + pair * inner + k, mask=k < inner, other=0.0).to(tl.float32)
            weights = _run(packed, scales, zeros, channel, here, index, packing)
            sums += weights * (share * value)[None]
        if bias is not None:
            total += share * tl.load(bias + channel, mask=here, other=0.0).to(tl.float32)
    total += tl.sum(tl.sum(sums, 2), 1)
    at = token * features + n
    if base is not None:
        total += tl.load(base + at, mask=here, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=here)


def down_few_int4(
    x: torch.Tensor,
    routing: Routing,
    weights: Int4Experts,
    bias: torch.Tensor | None,
    base: torch.Tensor | None,
) -> torch.Tensor:
    """Compute the weighted sums [T, hidden] of the down products of x [T * k, inner].

    Args:
        weights: [experts, hidden, inner]. bias: [experts, hidden].
        base: [T, hidden], added.
    """
    (num_tokens, top_k), (_, features, inner) = routing.ids.shape, weights.shape
    packing = Packing.of(weights)
    shape = _launch(packing)
    out = torch.empty((num_tokens, features), dtype=x.dtype, device=x.device)
    _down_kernel[(triton.cdiv(features, shape.rows), num_tokens)](
        x,
        routing,
        weights.groups.words,
        weights.groups.scales,
        weights.groups.zeros,
        bias,
        base,
        out,
        inner=inner,
        features=features,
        top_k=top_k,
        ROWS=shape.rows,
        SPANS=triton.next_power_of_2(packing.spans),
        packing=packing,
        num_warps=shape.warps,
        **overlap_of(x),
    )
    return out
