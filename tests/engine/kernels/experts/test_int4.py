"""Experts of 4 bits against float64: weights unpacked by tables, sums by definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.kernels.experts.gates import GPT_OSS, RELU2, SILU, num_products
from engine.kernels.experts.layer import experts_few, experts_torch, experts_triton
from engine.kernels.experts.nibbles import INT4, MXFP4
from engine.kernels.experts.products import DenseExpertProduct, ExpertWeights, Int4ExpertProduct
from engine.kernels.experts.routing import Routing, RoutingRules, choose_experts
from sampling.device.triton_support import INTERPRETED
from tests.engine.kernels.experts.quantized import int4_experts, on
from tests.engine.kernels.experts.reference import assert_is_sum
from tests.engine.kernels.where import DEVICES

SIZES = [(5, 3, 288, 32), (4, 2, 64, 32), (4, 2, 96, 288)]
"""Experts, how many a token takes, hidden and inner size, for each of KINDS."""
# Code, group, zero points, dtype of the scales.
KINDS = [
    (INT4, 32, True, torch.float16),
    (INT4, 0, False, torch.bfloat16),
    (MXFP4, 32, False, torch.bfloat16),
]
NARROW = torch.float16 if INTERPRETED else torch.bfloat16  # to which the interpreter truncates


class Case:
    """Experts of both products, the same in float64, tokens and their routing."""

    def __init__(
        self,
        sizes: tuple[int, int, int, int],
        kind: tuple[str, int, bool, torch.dtype],
        num_tokens: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        num_experts, top_k, hidden, inner = sizes
        gate = GPT_OSS if kind[0] == MXFP4 else RELU2 if kind[2] else SILU
        channels = num_products(gate) * inner
        gate_up, wide_gate_up = int4_experts(num_experts, channels, hidden, kind)
        down, wide_down = int4_experts(num_experts, hidden, inner, kind)
        first, second = (
            torch.randn(num_experts, width).to(device, dtype) if gate == GPT_OSS else None
            for width in (channels, hidden)
        )
        self.weights = ExpertWeights(on(gate_up, device), on(down, device), first, second, gate)
        self.wide = wide_gate_up.to(device), wide_down.to(device)
        logits = torch.randn(num_tokens, num_experts, device=device)
        logits[:, 1] = -torch.inf  # an expert that no token takes
        self.routing: Routing = choose_experts(logits, RoutingRules(top_k, over_chosen=True))
        self.x = torch.randn(num_tokens, hidden, device=device).to(dtype)

    def check(self, got: torch.Tensor, *, rounds_weights: bool = False) -> None:
        assert got.dtype == self.x.dtype
        gate_up, down = self.wide
        if rounds_weights:
            gate_up, down = gate_up.to(got.dtype), down.to(got.dtype)
        wide = self.weights._replace(
            gate_up=DenseExpertProduct(gate_up), down=DenseExpertProduct(down)
        )
        assert_is_sum(got, self.x, *self.routing, wide)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_twin(sizes: tuple[int, int, int, int], kind: tuple[str, int, bool, torch.dtype]) -> None:
    case = Case(sizes, kind, 9, torch.float32, "cpu")
    case.check(experts_torch(case.x, case.routing, case.weights, None))


def in_an_order(
    weights: Int4ExpertProduct, wide: torch.Tensor, device: str
) -> tuple[Int4ExpertProduct, torch.Tensor]:
    """The weights as if each expert's columns had been put into an order before they were packed.

    With them, their values by input: [experts, channels, width].
    """
    count, _, width = wide.shape
    order = torch.stack([torch.randperm(width) for _ in range(count)]).to(device)
    by_input = torch.empty_like(wide)
    by_input.scatter_(2, order[:, None].expand_as(wide), wide)
    return weights._replace(order=order.int()), by_input


@pytest.mark.parametrize(
    ("path", "device"),
    [(experts_torch, "cpu")]
    + [
        pytest.param(path, *each.values, marks=each.marks)
        for path in (experts_few, experts_triton)
        for each in DEVICES
    ],
)
def test_in_an_order_of_inputs(path: Any, device: str) -> None:
    case = Case((4, 2, 64, 32), KINDS[0], 2, torch.float32, device)
    first, second = case.weights.gate_up, case.weights.down
    assert isinstance(first, Int4ExpertProduct)
    assert isinstance(second, Int4ExpertProduct)
    gate_up, wide_gate_up = in_an_order(first, case.wide[0], device)
    down, wide_down = in_an_order(second, case.wide[1], device)
    case.weights = case.weights._replace(gate_up=gate_up, down=down)
    case.wide = wide_gate_up, wide_down
    case.check(path(case.x, case.routing, case.weights, None))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, NARROW])
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 12])
@pytest.mark.parametrize(("sizes", "kind"), list(zip(SIZES, KINDS, strict=True)))
def test_few_and_many(
    sizes: tuple[int, int, int, int],
    kind: tuple[str, int, bool, torch.dtype],
    num_tokens: int,
    dtype: torch.dtype,
    device: str,
) -> None:
    case, are_few = Case(sizes, kind, num_tokens, dtype, device), num_tokens < 3
    path = experts_few if are_few else experts_triton
    got = path(case.x, case.routing, case.weights, None)
    case.check(got, rounds_weights=not are_few)
    assert torch.equal(got, path(case.x, case.routing, case.weights, None))
