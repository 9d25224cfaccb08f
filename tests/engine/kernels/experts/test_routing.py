from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.kernels.experts.groups import FEW_PAIRS, PART, group_pairs_torch, group_pairs_triton
from engine.kernels.experts.routing import (
    Routing,
    RoutingRules,
    choose_experts_torch,
    choose_experts_triton,
)
from tests.engine.kernels.where import DEVICES


@pytest.mark.parametrize("over_chosen", [False, True])
@pytest.mark.parametrize(("num_experts", "top_k"), [(4, 2), (60, 4), (128, 8), (5, 5), (8, 1)])
def test_choices(num_experts: int, top_k: int, *, over_chosen: bool) -> None:
    logits = 3 * torch.randn(50, num_experts)
    routing = choose_experts_torch(logits, RoutingRules(top_k, over_chosen=over_chosen))
    wide = logits.double().exp()
    shares = wide / wide.sum(-1, keepdim=True)
    wanted, ids = shares.topk(top_k, dim=-1)
    if over_chosen:
        wanted = wanted / wanted.sum(-1, keepdim=True)
    assert torch.equal(routing.ids.long(), ids)
    assert routing.weights.dtype == torch.float32
    torch.testing.assert_close(routing.weights.double(), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("over_chosen", [False, True])
@pytest.mark.parametrize(("num_experts", "top_k"), [(4, 2), (60, 4), (128, 8), (5, 5), (8, 1)])
def test_kernel(num_experts: int, top_k: int, device: str, *, over_chosen: bool) -> None:
    logits = 3 * torch.randn(20, num_experts, device=device)
    logits[3] = 0.0
    logits[4, ::2] = logits[4, 1]
    got = choose_experts_triton(logits, RoutingRules(top_k, over_chosen=over_chosen))
    wanted = choose_experts_torch(logits, RoutingRules(top_k, over_chosen=over_chosen))
    assert torch.equal(got.ids, wanted.ids)
    torch.testing.assert_close(got.weights, wanted.weights, rtol=1e-5, atol=1e-7)


GROUPED = [
    RoutingRules(3, over_chosen=False, scale=16.0, num_groups=4, top_groups=2),
    RoutingRules(6, over_chosen=True, scale=2.5, num_groups=8, top_groups=3),
    RoutingRules(4, over_chosen=False, num_groups=8, top_groups=4),
]
"""For 24 experts."""


def assert_best(
    routing: Routing,
    token: int,
    experts: list[int],
    scores: torch.Tensor,
    compared: list[float],
    rules: RoutingRules,
) -> None:
    """Assert that a token has the best of some experts, weighted by their float64 scores [24]."""
    ids = sorted(experts, key=lambda expert: -compared[expert])[: rules.top_k]
    assert routing.ids[token].tolist() == ids
    wanted = scores[ids] * rules.scale
    if rules.over_chosen:
        wanted = wanted / scores[ids].sum()
    torch.testing.assert_close(routing.weights[token].double(), wanted, rtol=1e-5, atol=0)


def test_groups_of_experts() -> None:
    """DeepSeek-V2's rule by its definition in float64, expert by expert."""
    logits = 3 * torch.randn(50, 24)
    for rules in GROUPED:
        routing = choose_experts_torch(logits, rules)
        shares = logits.double().softmax(-1)
        size = 24 // rules.num_groups
        for token in range(50):
            best = [max(shares[token, at : at + size]) for at in range(0, 24, size)]
            order = sorted(range(rules.num_groups), key=lambda group: -best[group])
            taken = order[: rules.top_groups]
            rest = [e for e in range(24) if e // size in taken]
            assert_best(routing, token, rest, shares[token], shares[token].tolist(), rules)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rules", GROUPED)
def test_kernel_with_groups(rules: RoutingRules, device: str) -> None:
    logits = 3 * torch.randn(20, 24, device=device)
    logits[3] = 0.0
    logits[4, ::2] = logits[4, 1]
    got, wanted = choose_experts_triton(logits, rules), choose_experts_torch(logits, rules)
    assert torch.equal(got.ids, wanted.ids)
    torch.testing.assert_close(got.weights, wanted.weights, rtol=1e-5, atol=1e-7)


SIGMOID = [
    RoutingRules(6, over_chosen=True, scale=2.5, sigmoid=True, num_groups=8, top_groups=3),
    RoutingRules(4, over_chosen=False, scale=1.5, sigmoid=True, num_groups=4, top_groups=2),
    RoutingRules(3, over_chosen=True, sigmoid=True),
]
"""For 24 experts."""


@pytest.mark.parametrize("rules", SIGMOID)
def test_sigmoid_scores(rules: RoutingRules) -> None:
    """DeepSeek-V3's rule by its definition in float64, expert by expert."""
    logits, correction = 2 * torch.randn(50, 24), 0.5 * torch.randn(24)
    routing = choose_experts_torch(logits, rules, correction)
    scores, size = logits.double().sigmoid(), 24 // rules.num_groups
    compared = (scores + correction.double()).tolist()
    for token in range(50):
        own = compared[token]
        of_group = [sum(sorted(own[at : at + size])[-2:]) for at in range(0, 24, size)]
        order = sorted(range(rules.num_groups), key=lambda group: -of_group[group])
        taken = order[: rules.top_groups]
        rest = [e for e in range(24) if e // size in taken]
        assert_best(routing, token, rest, scores[token], own, rules)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rules", SIGMOID)
def test_kernel_with_sigmoid_scores(rules: RoutingRules, device: str) -> None:
    logits, correction = 2 * torch.randn(20, 24, device=device), torch.randn(24, device=device)
    logits[3] = 0.0
    got = choose_experts_triton(logits, rules, correction)
    wanted = choose_experts_torch(logits, rules, correction)
    assert torch.equal(got.ids, wanted.ids)
    torch.testing.assert_close(got.weights, wanted.weights, rtol=1e-5, atol=1e-7)


def test_of_equal_logits_the_lower_id_is_first() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0]])
    assert choose_experts_torch(logits, RoutingRules(4, over_chosen=True)).ids.tolist() == [
        [1, 2, 4, 0]
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_logits_that_are_no_numbers_choose_distinct_experts(device: str) -> None:
    logits = torch.full((2, 6), torch.nan, device=device)
    logits[1] = -torch.inf
    with np.errstate(invalid="ignore"):  # the interpreter's arithmetic
        ids = choose_experts_triton(logits, RoutingRules(4, over_chosen=True)).ids
    assert ids.tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k"),
    [(1, 4, 2), (9, 60, 4), (FEW_PAIRS // 2, 7, 2), (FEW_PAIRS + 3, 5, 1), (18 * PART + 3, 60, 4)],
)
def test_groups(num_tokens: int, num_experts: int, top_k: int, device: str) -> None:
    logits = torch.randn(num_tokens, num_experts, device=device)
    logits[:, num_experts // 2] = -torch.inf  # an expert that no token takes
    ids = choose_experts_torch(logits, RoutingRules(top_k, over_chosen=True)).ids.contiguous()
    got, wanted = group_pairs_triton(ids, num_experts), group_pairs_torch(ids, num_experts)
    assert torch.equal(got.order, wanted.order)
    assert torch.equal(got.starts, wanted.starts)
    assert ids.flatten()[got.order.long()].diff().ge(0).all()
