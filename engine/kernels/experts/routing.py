# mypy: allow-untyped-defs, allow-incomplete-defs
"""Which experts a token takes, and with what weights, from the router's float32 logits.

A token takes the `top_k` experts of highest logit, in that order; of equal ones the lower id first.
Their weights are softmax probabilities, over all experts or over those chosen (which is the same as
dividing the former by their sum). Where experts are in groups, a token first takes the groups whose
best experts are best, and only experts of these (DeepSeek-V2, arXiv 2405.04434, section 2.2.2).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.overlap import begin_next, overlap_of, wait_for_last
from sampling.triton_support import jit, padded_lanes, tl


class Routing(NamedTuple):
    """The experts of T tokens by falling logits: ids int32 and weights float32 [T, k]."""

    ids: torch.Tensor
    weights: torch.Tensor


class RoutingRules(NamedTuple):
    """How experts are chosen and weighted.

    Attributes:
        over_chosen: the weights of the chosen sum to `scale`, else those of all experts would.
        num_groups: of experts, equally many each, side by side. top_groups: how many a token takes.
    """

    top_k: int
    over_chosen: bool
    scale: float = 1.0
    num_groups: int = 1
    top_groups: int = 1


def choose_experts(logits: torch.Tensor, rules: RoutingRules) -> Routing:
    """Choose each token's experts by float32 logits [T, experts]."""
    if logits.is_cuda:
        return choose_experts_triton(logits, rules)
    return choose_experts_torch(logits, rules)


def choose_experts_torch(logits: torch.Tensor, rules: RoutingRules) -> Routing:
    free, top_k = logits, rules.top_k
    if rules.num_groups > 1:
        groups = logits.view(len(logits), rules.num_groups, -1)
        best = groups.amax(-1).sort(dim=-1, descending=True, stable=True).indices
        is_left = torch.ones(groups.shape[:2], dtype=torch.bool, device=logits.device)
        is_left.scatter_(1, best[:, : rules.top_groups], False)
        free = groups.masked_fill(is_left[..., None], -torch.inf).flatten(1)
    ordered, ids = free.sort(dim=-1, descending=True, stable=True)
    shares = ordered[:, :top_k].softmax(dim=-1)
    if not rules.over_chosen:
        shares = logits.softmax(dim=-1).gather(1, ids[:, :top_k])
    return Routing(ids[:, :top_k].int(), shares * rules.scale)


@jit
def _best(value, e, is_free, EXPERTS: tl.constexpr):  # noqa: N803
    """The highest value of free experts, and the first that has it."""
    top = tl.max(tl.where(is_free, value, float("-inf")), 0)
    return top, tl.min(tl.where(is_free & (value == top), e, EXPERTS), 0)


@jit
def _in_top_groups(
    value,
    e,
    is_free,
    num_experts: tl.constexpr,
    rules: tl.constexpr,
    EXPERTS: tl.constexpr,  # noqa: N803
):
    """Whether an expert is in one of the groups that the token takes."""
    size: tl.constexpr = num_experts // rules.num_groups
    taken = e < 0
    for _ in tl.static_range(rules.top_groups):
        _, first = _best(value, e, is_free & ~taken, EXPERTS)
        taken |= e // size == first // size
    return is_free & taken


@jit
def choose(
    logits,
    ids,
    weights,
    token,
    num_experts: tl.constexpr,
    rules: tl.constexpr,
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
):
    """Choose a token's experts; distinct ones also where logits are not numbers."""
    e, j = tl.arange(0, EXPERTS), tl.arange(0, CHOSEN)
    value = tl.load(logits + token * num_experts + e, mask=e < num_experts, other=float("-inf"))
    value = tl.where(value == value, value, float("-inf"))
    highest = tl.max(value, 0)
    total = tl.sum(tl.exp(value - highest), 0)
    is_free = e < num_experts
    if rules.num_groups > 1:
        is_free = _in_top_groups(value, e, is_free, num_experts, rules, EXPERTS)
    chosen = tl.zeros((CHOSEN,), tl.int32)
    weight = tl.zeros((CHOSEN,), tl.float32)
    for rank in tl.static_range(rules.top_k):
        top, first = _best(value, e, is_free, EXPERTS)
        is_free &= e != first
        chosen = tl.where(j == rank, first, chosen)
        weight = tl.where(j == rank, tl.exp(top - highest), weight)
    if rules.over_chosen:
        total = tl.sum(weight, 0)
    at = token * rules.top_k + j
    tl.store(ids + at, chosen, mask=j < rules.top_k)
    tl.store(weights + at, weight / total * rules.scale, mask=j < rules.top_k)


@jit
def _choose_kernel(
    logits,
    ids,
    weights,
    num_experts: tl.constexpr,
    rules: tl.constexpr,
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes a token."""
    begin_next(overlap)
    wait_for_last(overlap)
    token = tl.program_id(0).to(tl.int64)
    choose(logits, ids, weights, token, num_experts, rules, EXPERTS, CHOSEN)


def empty_routing(num_tokens: int, top_k: int, device: torch.device) -> Routing:
    """Room for the choices of `num_tokens` tokens."""
    ids = torch.empty((num_tokens, top_k), dtype=torch.int32, device=device)
    return Routing(ids, torch.empty((num_tokens, top_k), dtype=torch.float32, device=device))


def choose_experts_triton(logits: torch.Tensor, rules: RoutingRules) -> Routing:
    """Compute `choose_experts` in a kernel; logits contiguous."""
    num_tokens, num_experts = logits.shape
    assert logits.is_contiguous()
    assert rules.top_k <= num_experts
    routing = empty_routing(num_tokens, rules.top_k, logits.device)
    _choose_kernel[(num_tokens,)](
        logits,
        *routing,
        num_experts=num_experts,
        rules=rules,
        EXPERTS=padded_lanes(num_experts),
        CHOSEN=padded_lanes(rules.top_k),
        num_warps=1,
        **overlap_of(logits),
    )
    return routing
