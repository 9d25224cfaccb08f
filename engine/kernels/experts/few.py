# mypy: allow-untyped-defs, allow-incomplete-defs
"""Experts of a few tokens: streams of the chosen experts' weights, in three kernels.

The first, of `few_router`, norms its input and computes the router's logits, and its last program
chooses the experts. The second computes gate and up products of every pair of a token and an
expert, and joins them. The third computes the down products of all of a token's experts, and adds
them in the order of their ranks. Sums are float32.

An expert that all tokens take may come along, cut into parts of the chosen ones' size: each is one
more pair of every token. By itself it would take four kernels more.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.experts.gates import join, num_products, plus_delta
from engine.kernels.experts.routing import Routing
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

GATE_UP_ROWS, DOWN_ROWS = 1, 2
"""Number of output features of a program."""


class SharedFew(NamedTuple):
    """The expert that all tokens take, beside chosen ones without biases.

    Attributes:
        gate_up: [products * width, hidden], gate rows, then up rows; its width is a multiple of the
            chosen experts' inner size.
        down: [hidden, width].
        gate: [1, hidden], of `SharedGate`; None where there is none.
    """

    gate_up: torch.Tensor
    down: torch.Tensor
    gate: torch.Tensor | None


@jit
def _gate_up_kernel(
    x,
    ids,
    weight,
    shared,
    bias,
    delta,
    out,
    features: tl.constexpr,
    inner: tl.constexpr,
    parts: tl.constexpr,
    top_k: tl.constexpr,
    gate: tl.constexpr,
    products: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes ROWS of a pair's joined features; pairs of shared parts come last."""
    begin_next(overlap)
    pair = tl.program_id(1).to(tl.int64)
    token, up_step = pair // top_k, inner * features
    n, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    here, inside = n < inner, k < features
    both = here[:, None] & inside[None, :]
    wait_for_last(overlap)
    if parts == 0:
        channel = tl.load(ids + pair).to(tl.int64) * products * inner + n
    else:
        part = pair - tl.num_programs(1) // (top_k + parts) * top_k
        chosen = part < 0
        token = tl.where(chosen, token, part // parts)
        expert = tl.load(ids + pair, mask=chosen, other=0).to(tl.int64) * products
        channel = tl.where(chosen, expert, part % parts) * inner + n
        weight = tl.where(chosen, weight, shared)
        up_step = tl.where(chosen, up_step, parts * up_step)
    tile_ptr = weight + channel[:, None] * features + k[None, :]
    gate_tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
    up_tile = gate_tile
    if products == 2:
        tile_ptr += up_step
        up_tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
    value = tl.load(x + token * features + k, mask=inside, other=0.0).to(tl.float32)
    gates = tl.sum(gate_tile.to(tl.float32) * value[None, :], 1)
    ups = tl.sum(up_tile.to(tl.float32) * value[None, :], 1)
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


def gate_up_few(
    x: torch.Tensor,
    ids: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: str,
    rows: int = GATE_UP_ROWS,
    warps: int = 4,
    delta: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute joined gate and up products [T * k, inner] of x [T, hidden] and ids [T, k].

    Args:
        weight: [experts, products * inner, hidden], gate rows, then up rows if the gate joins two
            products. bias: [experts, products * inner].
        delta: [T * k, products * inner], added to the products, where it is not zero.
        shared: as of `SharedFew`, without bias and delta: T * width // inner rows more come out.
    """
    (num_tokens, top_k), (_, channels, features) = ids.shape, weight.shape
    inner = channels // num_products(gate)
    parts = 0 if shared is None else len(shared) // channels
    assert shared is None or (len(shared) == parts * channels and bias is delta is None)
    num_pairs = num_tokens * (top_k + parts)
    out = torch.empty((num_pairs, inner), dtype=x.dtype, device=x.device)
    _gate_up_kernel[(triton.cdiv(inner, rows), num_pairs)](
        x,
        ids,
        weight,
        shared,
        bias,
        delta,
        out,
        features=features,
        inner=inner,
        parts=parts,
        top_k=top_k,
        gate=gate,
        products=num_products(gate),
        ROWS=rows,
        BLOCK=triton.next_power_of_2(features),
        num_warps=warps,
        **overlap_of(x),
    )
    return out


@jit
def _down_kernel(
    x,
    ids,
    weights,
    weight,
    shared,
    shares,
    bias,
    base,
    out,
    inner: tl.constexpr,
    parts: tl.constexpr,
    features: tl.constexpr,
    top_k: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes ROWS of a token's output features."""
    begin_next(overlap)
    token = tl.program_id(1).to(tl.int64)
    n, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    here, inside = n < features, k < inner
    both = here[:, None] & inside[None, :]
    wait_for_last(overlap)
    # Summed over features at the very end: a sum among warps would hold the next loads up.
    sums, total = tl.zeros((ROWS, BLOCK), tl.float32), tl.zeros((ROWS,), tl.float32)
    for rank in tl.static_range(top_k):
        pair = token * top_k + rank
        share = tl.load(weights + pair)
        channel = tl.load(ids + pair).to(tl.int64) * features + n
        tile_ptr = weight + channel[:, None] * inner + k[None, :]
        tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
        value = tl.load(x + pair * inner + k, mask=inside, other=0.0).to(tl.float32)
        sums += tile.to(tl.float32) * (share * value)[None, :]
        if bias is not None:
            total += share * tl.load(bias + channel, mask=here, other=0.0).to(tl.float32)
    for part in tl.static_range(parts):
        pair = tl.num_programs(1) * top_k + token * parts + part
        tile_ptr = shared + n[:, None] * (parts * inner) + (part * inner + k)[None, :]
        tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
        value = tl.load(x + pair * inner + k, mask=inside, other=0.0).to(tl.float32)
        if shares is not None:
            value *= tl.load(shares + token)
        sums += tile.to(tl.float32) * value[None, :]
    total += tl.sum(sums, 1)
    at = token * features + n
    if base is not None:
        total += tl.load(base + at, mask=here, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=here)


def down_few(
    x: torch.Tensor,
    routing: Routing,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    base: torch.Tensor | None,
    rows: int = DOWN_ROWS,
    warps: int = 4,
    shared: torch.Tensor | None = None,
    shares: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the weighted sums [T, hidden] of the down products of x [T * k, inner].

    Args:
        weight: [experts, hidden, inner]. bias: [experts, hidden].
        base: [T, hidden], added.
        shared: as of `SharedFew`, where x has rows of its parts too.
        shares: [T], that of each token; None is 1.
    """
    (num_tokens, top_k), (_, features, inner) = routing.ids.shape, weight.shape
    parts = len(x) // num_tokens - top_k
    assert (shared is None) == (parts == 0)
    out = torch.empty((num_tokens, features), dtype=x.dtype, device=x.device)
    _down_kernel[(triton.cdiv(features, rows), num_tokens)](
        x,
        *routing,
        weight,
        shared,
        shares,
        bias,
        base,
        out,
        inner=inner,
        parts=parts,
        features=features,
        top_k=top_k,
        ROWS=rows,
        BLOCK=triton.next_power_of_2(inner),
        num_warps=warps,
        **overlap_of(x),
    )
    return out
