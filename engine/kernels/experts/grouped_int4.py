# mypy: allow-untyped-defs, allow-incomplete-defs
"""Experts' products of many tokens with weights of 4 bits: `grouped`, unpacked in registers.

A weight, its scale included, is rounded once to the input's type, for the tensor cores.
"""

from __future__ import annotations

import torch

from engine.kernels.experts.few_int4 import Packing
from engine.kernels.experts.gates import num_products
from engine.kernels.experts.groups import Groups
from engine.kernels.experts.nibbles import value_of
from engine.kernels.experts.tiles import find, lanes_of, store_products
from engine.kernels.experts.weights import Int4Experts
from engine.kernels.quantized.int4 import RUN, SPAN
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl, triton

MIN_PAIRS, MAX_PAIRS, ROWS = 16, 64, 64
"""Pairs of a tile, fewest and most, and its output features; float32 takes the fewest of both."""

_RUN, _SPAN = constexpr(RUN), constexpr(SPAN)


@jit
def _unpacked(packed, scales, zeros, group_at, packing: tl.constexpr, dtype: tl.constexpr):
    """A span of channels [N, SPAN] of its words [N, RUN], in the input's type."""
    index = tl.arange(0, _SPAN // _RUN)
    at = group_at[:, None] + (index * _RUN // packing.group)[None, :]
    scale = tl.load(scales + at).to(tl.float32)[:, :, None]
    zero = None
    if zeros is not None:
        zero = tl.load(zeros + at).to(tl.float32)[:, :, None]
    q = (packed[:, None, :] >> (4 * index)[None, :, None]) & 15
    code: tl.constexpr = packing.code
    values = (value_of(q, zero, code) * scale).to(dtype)
    return tl.reshape(values, (packed.shape[0], _SPAN))


@jit
def _grouped_kernel(
    x,
    words,
    scales,
    zeros,
    bias,
    delta,
    out,
    groups,
    features: tl.constexpr,
    channels: tl.constexpr,
    num_experts: tl.constexpr,
    top_k: tl.constexpr,
    gate: tl.constexpr,
    products: tl.constexpr,
    precision: tl.constexpr,
    EXPERTS: tl.constexpr,  # noqa: N803
    N: tl.constexpr,  # noqa: N803
    M: tl.constexpr,  # noqa: N803
    packing: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program computes N output features of M pairs, as that of `grouped` does."""
    begin_next(overlap)
    wait_for_last(overlap)
    found = find(groups.starts, tl.program_id(1), num_experts, EXPERTS, M)
    if found.expert >= num_experts:
        return
    n = tl.program_id(0) * N + tl.arange(0, N)
    column, k = tl.arange(0, _RUN), tl.arange(0, _SPAN)
    lanes = lanes_of(n, found, groups.order, channels, top_k, gate, products, M)
    row = lanes.row
    stride: tl.constexpr = packing.spans * _RUN
    num_groups: tl.constexpr = _SPAN // packing.group
    to_up: tl.constexpr = channels * packing.spans * num_groups
    w_ptr = words + row[:, None] * stride + column[None, :]
    x_ptr = x + lanes.source[:, None] * features + k[None, :]
    group_at = row * (packing.spans * num_groups)
    dtype: tl.constexpr = x.dtype.element_ty
    total = tl.zeros((N, M), tl.float32)
    ups = tl.zeros((N, M), tl.float32)
    for span in tl.range(0, packing.spans, num_stages=2):
        inside = (k + span * _SPAN < features)[None, :]
        x_tile = tl.trans(tl.load(x_ptr, mask=lanes.real[:, None] & inside, other=0.0))
        tile = _unpacked(tl.load(w_ptr), scales, zeros, group_at, packing, dtype)
        total = tl.dot(tile, x_tile, total, input_precision=precision)
        if products == 2:
            packed = tl.load(w_ptr + channels * stride)
            tile = _unpacked(packed, scales, zeros, group_at + to_up, packing, dtype)
            ups = tl.dot(tile, x_tile, ups, input_precision=precision)
        w_ptr += _RUN
        x_ptr += _SPAN
        group_at += num_groups
    store_products(total, ups, bias, delta, out, lanes, channels, gate, products)


def grouped_int4(
    x: torch.Tensor,
    weights: Int4Experts,
    bias: torch.Tensor | None,
    groups: Groups,
    top_k: int,
    gate: str | None,
    delta: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply each pair's input by its expert's weight; arguments as those of `grouped_linear`."""
    num_pairs, (num_experts, channels, features) = len(groups.order), weights.shape
    channels //= num_products(gate)
    expected = triton.next_power_of_2(2 * triton.cdiv(num_pairs, num_experts))
    is_wide = x.dtype == torch.float32
    pairs = MIN_PAIRS if is_wide else min(max(expected, MIN_PAIRS), MAX_PAIRS)
    rows = MIN_PAIRS if is_wide else ROWS
    num_tiles = min(num_pairs, num_pairs // pairs + num_experts)
    out = torch.empty((num_pairs, channels), dtype=x.dtype, device=x.device)
    _grouped_kernel[(triton.cdiv(channels, rows), num_tiles)](
        x,
        weights.groups.words,
        weights.groups.scales,
        weights.groups.zeros,
        bias,
        delta,
        out,
        groups,
        features=features,
        channels=channels,
        num_experts=num_experts,
        top_k=top_k,
        gate=gate,
        products=num_products(gate),
        precision="ieee" if is_wide else "tf32",
        EXPERTS=padded_lanes(num_experts),
        N=rows,
        M=pairs,
        packing=Packing.of(weights),
        num_warps=4,
        **overlap_of(x),
    )
    return out
