from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch

from engine.kernels.recurrent import reference
from engine.kernels.recurrent.gates import gates_torch
from engine.kernels.recurrent.matrices import Drafted, HeadWeights, Matrices, Rule, TokenInputs
from engine.kernels.recurrent.recurrence import recurrence_torch
from engine.kernels.recurrent.recurrence_serial import recurrence_serial
from tests.engine.kernels.recurrent.calls import Compute, Part, extent_of, state_rows, weights_on
from tests.engine.kernels.where import DEVICES

ROUNDINGS = 8 * torch.finfo(torch.float32).eps
"""Of an exponential, a logarithm, a sum and a product, a few units each."""
FAST_ROUNDINGS = 64 * torch.finfo(torch.float32).eps
"""The same where a GPU multiplies an exponential's argument by a rounded constant: as many units
more as the argument, here below 40, is large."""
HEADS = 4
WAYS = [
    pytest.param(recurrence_torch, "cpu", id="twin"),
    *(pytest.param(recurrence_serial, *each.values, marks=each.marks) for each in DEVICES),
]


class Case(NamedTuple):
    """A rule, what its heads have learned, and tokens' a and b."""

    rule: Rule
    weights: HeadWeights
    a: torch.Tensor
    b: torch.Tensor

    @property
    def wanted(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Decays and betas in float64."""
        a_log, bias, _ = self.weights
        if self.rule.delta:
            return reference.delta_gates(self.a, self.b, a_log, bias, self.rule.beta_scale)
        steps = reference.space_steps(self.a, bias, self.rule.step_limits)
        return -a_log.double().exp() * steps, steps


def delta_case(num_tokens: int, channels: int | None = None) -> Case:
    """Betas up to 2, of columns that lie between others of a product."""
    shape = (HEADS,) if channels is None else (HEADS, channels)
    a, b = 12 * torch.randn(num_tokens, *shape), 12 * torch.randn(num_tokens, HEADS)
    columns = torch.cat([b, a.flatten(1), b], dim=1).bfloat16()
    weights = HeadWeights(torch.randn(HEADS), torch.randn(shape))
    own = columns[:, HEADS:-HEADS].view(num_tokens, *shape)
    return Case(Rule(True, 1.0, beta_scale=2.0), weights, own, columns[:, -HEADS:])


def space_case(limits: tuple[float, float]) -> Case:
    dt = (12 * torch.randn(70, HEADS + 2)).bfloat16()[:, 2:]
    weights = HeadWeights(*torch.randn(3, HEADS))
    return Case(Rule(False, 1.0, step_limits=limits), weights, dt, dt)


@pytest.mark.parametrize(("compute", "device"), WAYS)
@pytest.mark.parametrize("channels", [None, 5])
@pytest.mark.parametrize("num_tokens", [1, 3, 70])
def test_gates_of_delta_rules(
    num_tokens: int, channels: int | None, compute: Compute, device: str
) -> None:
    check(delta_case(num_tokens, channels), compute, device)


@pytest.mark.parametrize(("compute", "device"), WAYS)
@pytest.mark.parametrize("limits", [(0.0, math.inf), (0.25, 2.0)])
def test_gates_of_state_spaces(limits: tuple[float, float], compute: Compute, device: str) -> None:
    check(space_case(limits), compute, device)


def check(case: Case, compute: Compute, device: str) -> None:
    """Compare gates with float64's: softplus and sigmoid lose nothing at any size.

    They are what a recurrence keeps of tokens that may be refused, which all of these are.
    """
    count, width = len(case.a), case.a[0, 0].numel()

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=device)

    memory = Matrices(
        zeros(2, HEADS, 1, width),
        Drafted(
            zeros(2, count, HEADS, width),
            zeros(2, count, HEADS, 1),
            zeros(2, count, *case.a.shape[1:]),
            zeros(2, count, HEADS),
        ),
    )
    keys, values = zeros(count, HEADS, width), zeros(count, HEADS, 1)
    tokens = TokenInputs(keys, keys, values, case.a.to(device), case.b.to(device))
    weights = weights_on(device, case.weights)
    parts = [Part(0, 0, count, slot=1)]
    rows, extent = state_rows(parts, device), extent_of(parts, num_certain=0)
    compute(tokens, case.rule, weights, memory, rows, extent)
    got = (memory.drafted.decay[1], memory.drafted.beta[1])
    for own, wanted in zip(got, case.wanted, strict=True):
        torch.testing.assert_close(own.cpu().double(), wanted, rtol=FAST_ROUNDINGS, atol=1e-37)


def test_gates_are_float32_whatever_the_products_are() -> None:
    case = delta_case(3)
    for got, wanted in zip(gates_torch(case.a, case.b, *case[:2]), case.wanted, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), wanted, rtol=ROUNDINGS, atol=0.0)


def test_steps_are_limited() -> None:
    dt = torch.tensor([[-20.0, 0.5, 3.0, 1.0]]).bfloat16()
    weights = HeadWeights(torch.randn(HEADS), torch.zeros(HEADS))
    decay, step = gates_torch(dt, dt, Rule(False, 1.0, step_limits=(0.25, 2.0)), weights)
    wanted = torch.tensor([[0.25, math.log1p(math.exp(0.5)), 2.0, math.log1p(math.e)]])
    torch.testing.assert_close(step, wanted, rtol=ROUNDINGS, atol=0.0)
    torch.testing.assert_close(decay, -weights.a_log.exp() * wanted, rtol=ROUNDINGS, atol=0.0)
