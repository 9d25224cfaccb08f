"""Experts with adapters against experts whose weights were changed, in every path.

All in float32. A merged weight is rounded once more than the two products that it stands for: the
bound of `assert_is_sum` is some hundred times as wide.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from engine.kernels.experts.adapted import ExpertAdapters
from engine.kernels.experts.gates import GPT_OSS, RELU2, SILU, num_products
from engine.kernels.experts.groups import group_pairs
from engine.kernels.experts.layer import experts_few, experts_torch, experts_triton
from engine.kernels.experts.nibbles import INT4
from engine.kernels.experts.products import DenseExpertProduct, ExpertProduct, ExpertWeights
from engine.kernels.experts.routing import Routing, RoutingRules, choose_experts
from engine.kernels.lora.groups import ActiveAdapters
from engine.kernels.lora.stacks import Stacks
from tests.engine.kernels.experts.quantized import fp8_experts, int4_experts, on
from tests.engine.kernels.experts.reference import assert_is_sum, random_weights
from tests.engine.kernels.lora.cases import groups_of
from tests.engine.kernels.where import DEVICES

NUM_SLOTS, NUM_EXPERTS, TOP_K, HIDDEN, INNER, RANK = 2, 5, 3, 48, 40, 16
PATHS = [
    (experts_torch, "cpu"),
    *(pytest.param(experts_few, *each.values, marks=each.marks) for each in DEVICES),
    *(pytest.param(experts_triton, *each.values, marks=each.marks) for each in DEVICES),
]
SLOTS = np.array([0, -1, 1, 1], dtype=np.int32)


class Beside(NamedTuple):
    stacks: Stacks

    def delta(self, slot: int) -> torch.Tensor:
        """What an adapter adds to the weights: [experts, out, in]."""
        a, b, scales, bounds = *(each[slot] for each in self.stacks[:3]), self.stacks.bounds
        pieces = [
            scales[:, module, None, None] * (b[:, first:end] @ a[:, module])
            for module, (first, end) in enumerate(pairwise(bounds))
        ]
        return torch.cat(pieces, 1)


def some_stacks(widths: list[int], num_inputs: int, device: str) -> Beside:
    def some(*shape: int) -> torch.Tensor:
        return torch.randn((NUM_SLOTS, NUM_EXPERTS, *shape), device=device)

    a = some(len(widths), RANK, num_inputs) * num_inputs**-0.5
    b = some(sum(widths), RANK) * RANK**-0.5
    scales = 0.5 + torch.rand((NUM_SLOTS, NUM_EXPERTS, len(widths)), device=device)
    bounds = tuple(np.cumsum([0, *widths]).tolist())
    return Beside(Stacks(a, b, scales, bounds))


def some_routing(num_tokens: int, device: str) -> Routing:
    logits = torch.randn((num_tokens, NUM_EXPERTS), device=device)
    return choose_experts(logits, RoutingRules(TOP_K, over_chosen=True))


def merged(weights: ExpertWeights, adapters: ExpertAdapters, slot: int) -> ExpertWeights:
    products: list[ExpertProduct] = []
    for product, beside in ((weights.gate_up, adapters.gate_up), (weights.down, adapters.down)):
        assert isinstance(product, DenseExpertProduct)
        assert isinstance(beside, Beside)
        products.append(DenseExpertProduct(product.values + beside.delta(slot)))
    return weights._replace(gate_up=products[0], down=products[1], adapters=None)


@pytest.mark.parametrize("gate", [SILU, RELU2, GPT_OSS])
@pytest.mark.parametrize(("compute", "device"), PATHS)
def test_tokens_have_the_experts_of_their_adapter(compute: Any, device: str, gate: str) -> None:
    torch.manual_seed(0)
    weights = random_weights(
        *(NUM_EXPERTS, HIDDEN, INNER, torch.float32, device), has_bias=gate == GPT_OSS, gate=gate
    )
    gate_up = some_stacks([INNER] * num_products(gate), HIDDEN, device)
    active = ActiveAdapters()
    adapters = ExpertAdapters(gate_up, some_stacks([HIDDEN], INNER, device), active)
    x, base = torch.randn((2, len(SLOTS), HIDDEN), device=device).unbind()
    routing = some_routing(len(SLOTS), device)
    plain = compute(x, routing, weights, base)
    own = weights._replace(adapters=adapters)
    assert torch.equal(compute(x, routing, own, base), plain), "no adapter is active"
    with active.using(groups_of(SLOTS, device)):
        got = compute(x, routing, own, base)
    for token, slot in enumerate(SLOTS.tolist()):
        at = slice(token, token + 1)
        if slot < 0:
            assert torch.equal(got[at], plain[at])
            continue
        changed = merged(weights, adapters, slot)
        assert_is_sum(got[at], x[at], routing.ids[at], routing.weights[at], changed, base[at])
        assert (got[at] - plain[at]).abs().max() > 0.1, "adapters change little"


def test_bits_do_not_depend_on_the_batch() -> None:
    """Of products that do not: what adapters add has bits of its own."""
    torch.manual_seed(0)
    active = ActiveAdapters()
    beside = some_stacks([INNER] * 2, HIDDEN, "cpu"), some_stacks([HIDDEN], INNER, "cpu")
    adapters = ExpertAdapters(*beside, active)
    x, routing = torch.randn((40, HIDDEN)), some_routing(40, "cpu")
    slots = np.resize(SLOTS, 40)

    def of(rows: slice) -> torch.Tensor:
        ids = routing.ids[rows].contiguous()
        with active.using(groups_of(slots[rows], "cpu")):
            deltas = adapters.of_step(ids, None)
            assert deltas is not None
            return deltas.of_gate_up(x[rows])

    whole, alone = of(slice(0, 40)), of(slice(2, 3))
    assert torch.equal(whole.view(40, TOP_K, -1)[2], alone)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate", [SILU, RELU2])
@pytest.mark.parametrize("kind", ["dense", "fp8", "fp8 by spans", "int4"])
def test_every_kind_of_weights_adds_deltas_where_it_adds_biases(
    kind: str, gate: str, device: str
) -> None:
    torch.manual_seed(0)
    width, channels = 128, num_products(gate) * INNER
    product: ExpertProduct
    if kind == "dense":
        product = DenseExpertProduct(torch.randn((NUM_EXPERTS, channels, width), device=device))
    elif kind == "int4":
        packed = int4_experts(NUM_EXPERTS, channels, width, (INT4, 32, True, torch.float16))
        product = on(packed[0], device)
    else:
        by_spans = kind == "fp8 by spans"
        product = fp8_experts(NUM_EXPERTS, channels, width, device, by_spans=by_spans)
    x, ids = torch.randn((4, width), device=device), some_routing(4, device).ids
    bias = torch.randn((NUM_EXPERTS, channels), device=device)
    bias[:, ::3] = 0
    delta = bias[ids.flatten().long()]
    few = product.gate_up_few(x, ids, bias, gate, None)
    assert torch.equal(product.gate_up_few(x, ids, None, gate, None, delta), few)
    groups = group_pairs(ids, NUM_EXPERTS)
    many = product.grouped(x, ids, bias, groups, gate)
    by_place = delta[groups.order.long()]
    got = product.grouped(x, ids, None, groups, gate, by_place)
    # Triton begins the sums of inputs that one turn takes with the bias: 128 additions, each off
    # by 2^-24 of a sum at most, come in another order.
    torch.testing.assert_close(got, many, rtol=0, atol=2**-17 * float(many.abs().max()))
