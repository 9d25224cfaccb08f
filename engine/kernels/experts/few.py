# mypy: allow-untyped-defs, allow-incomplete-defs
"""Experts of a few tokens: streams of the chosen experts' weights, in three kernels.

The first norms its input and computes the router's logits, and its last program chooses the
experts. The second computes gate and up products of every pair of a token and an expert, and joins
them. The third computes the down products of all of a token's experts, and adds them in the order
of their ranks. Sums are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.experts.few_fp8 import store_rounded
from engine.kernels.experts.gates import join
from engine.kernels.experts.routing import Routing, RoutingRules, choose, empty_routing
from engine.kernels.fp8 import Fp8Rows
from engine.kernels.overlap import begin_next, overlap_of, wait_for_last
from engine.kernels.quantized.fp8_blocks import SPAN, Fp8Blocks
from engine.kernels.skinny import Norm, normed_input
from sampling.triton_support import jit, padded_lanes, tl, triton

ROUTER_ROWS = 2
"""Number of experts whose logits a program computes."""
GATE_UP_ROWS, DOWN_ROWS = 1, 2
"""Number of output features of a program."""


class Routed(NamedTuple):
    """What the router's kernel leaves.

    Attributes:
        normed: [T, hidden], the experts' input. sums: [T, hidden], x + residual.
    """

    routing: Routing
    normed: torch.Tensor
    sums: torch.Tensor


@jit
def _route_kernel(
    x,
    residual,
    norm_weight,
    router,
    bias,
    correction,
    logits,
    ids,
    weights,
    normed,
    sums,
    rounded,
    rounded_scales,
    arrivals,
    eps,
    num_tokens: tl.constexpr,
    features: tl.constexpr,
    num_spans: tl.constexpr,
    num_experts: tl.constexpr,
    rules: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes ROWS experts' logits of all tokens; the last of them chooses."""
    begin_next(overlap)
    e, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    here, inside = e < num_experts, k < features
    both = here[:, None] & inside[None, :]
    tile = tl.load(router + e[:, None] * features + k[None, :], mask=both, other=0.0)
    wait_for_last(overlap)
    first = tl.program_id(0) == 0
    for token in tl.static_range(num_tokens):
        at = token * features
        value = normed_input(
            x + at, residual + at, norm_weight, sums + at, k, inside, eps, features, first
        )
        if first:
            tl.store(normed + at + k, value.to(normed.dtype.element_ty), mask=inside)
            if rounded is not None:
                store_rounded(value, rounded, rounded_scales, token, features, num_spans, BLOCK)
        result = tl.sum(tile.to(tl.float32) * value[None, :], 1)
        if bias is not None:
            result += tl.load(bias + e, mask=here, other=0.0).to(tl.float32)
        tl.store(logits + token * num_experts + e, result, mask=here)
    tl.debug_barrier()  # all of the program's logits are written before it counts as there
    is_last = tl.atomic_add(arrivals, 1, sem="acq_rel") == tl.num_programs(0) - 1
    if is_last:
        for token in tl.static_range(num_tokens):
            choose(logits, correction, ids, weights, token, num_experts, rules, EXPERTS, CHOSEN)
        tl.store(arrivals, 0)


def route_few(
    x: torch.Tensor,
    norm: Norm,
    router: torch.Tensor,
    bias: torch.Tensor | None,
    rules: RoutingRules,
    arrivals: torch.Tensor,
    rounded: Fp8Rows | Fp8Blocks | None = None,
    correction: torch.Tensor | None = None,
) -> Routed:
    """Norm x [T, hidden] + the norm's residual, which must be there, and choose experts.

    Args:
        router: [experts, hidden]. bias: [experts].
        arrivals: int32 [1], zero, and zero again afterwards.
        rounded: [T, hidden], where the normed rows go in float8 too.
        correction: as of `choose_experts`.
    """
    (num_tokens, features), num_experts = x.shape, len(router)
    assert norm.residual is not None
    assert x.is_contiguous()
    assert norm.residual.is_contiguous()
    routing = empty_routing(num_tokens, rules.top_k, x.device)
    logits = torch.empty((num_tokens, num_experts), dtype=torch.float32, device=x.device)
    normed, sums = torch.empty_like(x), torch.empty_like(x)
    num_spans = rounded.scales.shape[1] if isinstance(rounded, Fp8Blocks) else 0
    _route_kernel[(triton.cdiv(num_experts, ROUTER_ROWS),)](
        x,
        norm.residual,
        norm.weight,
        router,
        bias,
        correction,
        logits,
        *routing,
        normed,
        sums,
        *(rounded or (None, None)),
        arrivals,
        norm.eps,
        num_tokens=num_tokens,
        features=features,
        num_spans=num_spans,
        num_experts=num_experts,
        rules=rules,
        ROWS=ROUTER_ROWS,
        BLOCK=max(triton.next_power_of_2(features), SPAN if num_spans else 1),
        EXPERTS=padded_lanes(num_experts),
        CHOSEN=padded_lanes(rules.top_k),
        num_warps=4,
        **overlap_of(x),
    )
    return Routed(routing, normed, sums)


@jit
def _gate_up_kernel(
    x,
    ids,
    weight,
    bias,
    out,
    features: tl.constexpr,
    inner: tl.constexpr,
    top_k: tl.constexpr,
    gate: tl.constexpr,
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program computes ROWS of a pair's joined features."""
    begin_next(overlap)
    pair = tl.program_id(1).to(tl.int64)
    n, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    here, inside = n < inner, k < features
    both = here[:, None] & inside[None, :]
    wait_for_last(overlap)
    channel = tl.load(ids + pair).to(tl.int64) * 2 * inner + n
    tile_ptr = weight + channel[:, None] * features + k[None, :]
    gate_tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
    tile_ptr += inner * features
    up_tile = tl.load(tile_ptr, mask=both, other=0.0, eviction_policy="evict_first")
    value = tl.load(x + pair // top_k * features + k, mask=inside, other=0.0).to(tl.float32)
    gates = tl.sum(gate_tile.to(tl.float32) * value[None, :], 1)
    ups = tl.sum(up_tile.to(tl.float32) * value[None, :], 1)
    if bias is not None:
        gates += tl.load(bias + channel, mask=here, other=0.0).to(tl.float32)
        ups += tl.load(bias + channel + inner, mask=here, other=0.0).to(tl.float32)
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
) -> torch.Tensor:
    """Compute joined gate and up products [T * k, inner] of x [T, hidden] and ids [T, k].

    Args:
        weight: [experts, 2 * inner, hidden], gate rows, then up rows. bias: [experts, 2 * inner].
    """
    (num_tokens, top_k), (_, two_inner, features) = ids.shape, weight.shape
    inner = two_inner // 2
    out = torch.empty((num_tokens * top_k, inner), dtype=x.dtype, device=x.device)
    _gate_up_kernel[(triton.cdiv(inner, rows), num_tokens * top_k)](
        x,
        ids,
        weight,
        bias,
        out,
        features=features,
        inner=inner,
        top_k=top_k,
        gate=gate,
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
    bias,
    base,
    out,
    inner: tl.constexpr,
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
) -> torch.Tensor:
    """Compute the weighted sums [T, hidden] of the down products of x [T * k, inner].

    Args:
        weight: [experts, hidden, inner]. bias: [experts, hidden].
        base: [T, hidden], added.
    """
    (num_tokens, top_k), (_, features, inner) = routing.ids.shape, weight.shape
    out = torch.empty((num_tokens, features), dtype=x.dtype, device=x.device)
    _down_kernel[(triton.cdiv(features, rows), num_tokens)](
        x,
        *routing,
        weight,
        bias,
        base,
        out,
        inner=inner,
        features=features,
        top_k=top_k,
        ROWS=rows,
        BLOCK=triton.next_power_of_2(inner),
        num_warps=warps,
        **overlap_of(x),
    )
    return out
