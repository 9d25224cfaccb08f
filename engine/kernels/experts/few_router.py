# mypy: allow-untyped-defs, allow-incomplete-defs
"""The experts of a few tokens chosen, and their input normed, in one kernel ahead of `few`."""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.experts.few_fp8 import store_rounded
from engine.kernels.experts.routing import Routing, RoutingRules, choose, empty_routing
from engine.kernels.fp8 import Fp8Rows
from engine.kernels.quantized.fp8_blocks import SPAN, Fp8Blocks
from engine.kernels.skinny import Norm, normed_input
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, padded_lanes, tl, triton

ROUTER_ROWS = 2
"""Number of experts whose logits a program computes."""


class Routed(NamedTuple):
    """What the router's kernel leaves.

    Attributes:
        normed: [T, hidden], the experts' input. sums: [T, hidden], x + residual.
        shares: float32 [T], of the expert that all tokens take; None where none was asked for.
    """

    routing: Routing
    normed: torch.Tensor
    sums: torch.Tensor
    shares: torch.Tensor | None


@jit
def _route_kernel(
    x,
    residual,
    norm_weight,
    router,
    bias,
    correction,
    shared_gate,
    logits,
    ids,
    weights,
    normed,
    sums,
    shares,
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
            if shared_gate is not None:
                gate = tl.load(shared_gate + k, mask=inside, other=0.0).to(tl.float32)
                tl.store(shares + token, 1.0 / (1.0 + tl.exp(-tl.sum(gate * value, 0))))
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
    shared_gate: torch.Tensor | None = None,
) -> Routed:
    """Norm x [T, hidden] + the norm's residual, which must be there, and choose experts.

    Args:
        router: [experts, hidden]. bias: [experts].
        arrivals: int32 [1], zero, and zero again afterwards.
        rounded: [T, hidden], where the normed rows go in float8 too.
        correction: as of `choose_experts`.
        shared_gate: [1, hidden], whose product's sigmoid is a token's share.
    """
    (num_tokens, features), num_experts = x.shape, len(router)
    assert norm.residual is not None
    assert x.is_contiguous()
    assert norm.residual.is_contiguous()
    routing = empty_routing(num_tokens, rules.top_k, x.device)
    logits = torch.empty((num_tokens, num_experts), dtype=torch.float32, device=x.device)
    normed, sums = torch.empty_like(x), torch.empty_like(x)
    shares = None if shared_gate is None else logits.new_empty(num_tokens)
    num_spans = rounded.scales.shape[1] if isinstance(rounded, Fp8Blocks) else 0
    _route_kernel[(triton.cdiv(num_experts, ROUTER_ROWS),)](
        x,
        norm.residual,
        norm.weight,
        router,
        bias,
        correction,
        shared_gate,
        logits,
        *routing,
        normed,
        sums,
        shares,
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
    return Routed(routing, normed, sums, shares)
