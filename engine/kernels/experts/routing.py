# mypy: allow-untyped-defs, allow-incomplete-defs
"""Which experts a token takes, and with what weights, from the router's float32 logits.

A token takes the `top_k` experts of highest logit, in that order; of equal ones the lower id first.
Their weights are softmax probabilities, over all experts or over those chosen (which is the same as
dividing the former by their sum). Where experts are in groups, a token first takes the groups whose
best experts are best, and only experts of these (DeepSeek-V2, arXiv 2405.04434, section 2.2.2).

By the rules of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2) an expert's score is the sigmoid of
its logit; what is compared is the score plus the expert's correction, and of a group the sum of its
two best. Weights are scores without corrections, divided by their sum or not. Softmax
probabilities may be corrected in the same way (ERNIE 4.5).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.invariant.functions import elementwise
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl

LEAST_SUM = 1e-20
"""Added to a sum of scores that is divided by."""
_LEAST_SUM = constexpr(LEAST_SUM)
_LOWEST = constexpr(torch.finfo(torch.float32).min)


class Routing(NamedTuple):
    """The experts of T tokens by falling logits: ids int32 and weights float32 [T, k]."""

    ids: torch.Tensor
    weights: torch.Tensor


class RoutingRules(NamedTuple):
    """How experts are chosen and weighted.

    Attributes:
        over_chosen: the weights of the chosen sum to `scale`; else probabilities of all experts
            would.
        sigmoid: DeepSeek-V3's rules.
        num_groups: of experts, equally many each, side by side. top_groups: how many a token takes.
    """

    top_k: int
    over_chosen: bool
    scale: float = 1.0
    sigmoid: bool = False
    num_groups: int = 1
    top_groups: int = 1


def choose_experts(
    logits: torch.Tensor, rules: RoutingRules, correction: torch.Tensor | None = None
) -> Routing:
    """Choose each token's experts by float32 logits [T, experts].

    Args:
        correction: float32 [experts], added to scores, or probabilities, that are compared.
    """
    if logits.is_cuda:
        return choose_experts_triton(logits, rules, correction)
    return choose_experts_torch(logits, rules, correction)


def choose_experts_torch(
    logits: torch.Tensor, rules: RoutingRules, correction: torch.Tensor | None = None
) -> Routing:
    scores = elementwise(torch.sigmoid, logits) if rules.sigmoid else logits
    free, top_k = scores, rules.top_k
    if correction is not None:
        free = (scores if rules.sigmoid else logits.softmax(dim=-1)) + correction
    if rules.num_groups > 1:
        groups = free.view(len(logits), rules.num_groups, -1)
        of_group = groups.topk(2, dim=-1).values.sum(-1) if rules.sigmoid else groups.amax(-1)
        best = of_group.sort(dim=-1, descending=True, stable=True).indices
        is_left = torch.ones(groups.shape[:2], dtype=torch.bool, device=logits.device)
        is_left.scatter_(1, best[:, : rules.top_groups], False)
        free = groups.masked_fill(is_left[..., None], -torch.inf).flatten(1)
    ids = free.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    if rules.sigmoid:
        shares = scores.gather(1, ids)
        if rules.over_chosen:
            shares = shares / (shares.sum(-1, keepdim=True) + LEAST_SUM)
    elif rules.over_chosen:
        shares = logits.gather(1, ids).softmax(dim=-1)
    else:
        shares = logits.softmax(dim=-1).gather(1, ids)
    return Routing(ids.int(), shares * rules.scale)


@jit
def _best(value, is_free):
    """The highest value of free experts, and the first of them that has it.

    Both by one reduction: a choice is a chain of them, and of their turns through shared memory.
    What is not finite counts as the lowest number, above all experts that are not free.
    """
    finite = tl.maximum(value, _LOWEST)
    return tl.max(tl.where(is_free, finite, float("-inf")), 0, return_indices=True)


@jit
def _in_top_groups(
    value,
    e,
    is_free,
    num_experts: tl.constexpr,
    rules: tl.constexpr,
):
    """Whether an expert is in one of the groups that the token takes."""
    num_groups: tl.constexpr = rules.num_groups
    top_groups: tl.constexpr = rules.top_groups
    size: tl.constexpr = num_experts // num_groups
    taken = e < 0
    of_group = value
    if rules.sigmoid:
        for group in tl.static_range(num_groups):
            own = e // size == group
            top, first = _best(value, own)
            second, _ = _best(value, own & (e != first))
            of_group = tl.where(own, top + second, of_group)
    for _ in tl.static_range(top_groups):
        _, first = _best(of_group, is_free & ~taken)
        taken |= e // size == first // size
    return is_free & taken


@jit
def choose(
    logits,
    correction,
    ids,
    weights,
    token,
    num_experts: tl.constexpr,
    rules: tl.constexpr,
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
):
    """Choose a token's experts; distinct ones also where logits are not numbers."""
    top_k: tl.constexpr = rules.top_k  # a range takes no field of a tuple
    e, j = tl.arange(0, EXPERTS), tl.arange(0, CHOSEN)
    value = tl.load(logits + token * num_experts + e, mask=e < num_experts, other=float("-inf"))
    value = tl.where(value == value, value, float("-inf"))
    is_free = e < num_experts
    if rules.sigmoid:
        share = 1.0 / (1.0 + tl.exp(-value))
        total, value = 1.0, share
    else:
        share = tl.exp(value - tl.max(value, 0))
        total = tl.sum(share, 0)
    if correction is not None:
        if not rules.sigmoid:
            value = share / total
        value += tl.load(correction + e, mask=is_free, other=0.0)
    if rules.num_groups > 1:
        is_free = _in_top_groups(value, e, is_free, num_experts, rules)
    chosen = tl.zeros((CHOSEN,), tl.int32)
    for rank in tl.static_range(top_k):
        _, first = _best(value, is_free)
        is_free &= e != first
        chosen = tl.where(j == rank, first, chosen)
    weight = tl.where(j < top_k, tl.gather(share, chosen, 0), 0.0)
    if rules.over_chosen:
        total = tl.sum(weight, 0)
        if rules.sigmoid:
            total += _LEAST_SUM
    at = token * top_k + j
    tl.store(ids + at, chosen, mask=j < top_k)
    tl.store(weights + at, weight / total * rules.scale, mask=j < top_k)


@jit
def _choose_kernel(
    logits,
    correction,
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
    choose(logits, correction, ids, weights, token, num_experts, rules, EXPERTS, CHOSEN)


def empty_routing(num_tokens: int, top_k: int, device: torch.device) -> Routing:
    """Room for the choices of `num_tokens` tokens."""
    ids = torch.empty((num_tokens, top_k), dtype=torch.int32, device=device)
    return Routing(ids, torch.empty((num_tokens, top_k), dtype=torch.float32, device=device))


def choose_experts_triton(
    logits: torch.Tensor, rules: RoutingRules, correction: torch.Tensor | None = None
) -> Routing:
    """Compute `choose_experts` in a kernel; logits contiguous."""
    num_tokens, num_experts = logits.shape
    assert logits.is_contiguous()
    assert rules.top_k <= num_experts
    routing = empty_routing(num_tokens, rules.top_k, logits.device)
    _choose_kernel[(num_tokens,)](
        logits,
        correction,
        *routing,
        num_experts=num_experts,
        rules=rules,
        EXPERTS=padded_lanes(num_experts),
        CHOSEN=padded_lanes(rules.top_k),
        num_warps=1,
        **overlap_of(logits),
    )
    return routing
