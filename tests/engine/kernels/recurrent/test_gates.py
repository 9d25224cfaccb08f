from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.kernels.recurrent.gates import (
    delta_gates,
    delta_gates_torch,
    delta_gates_triton,
    space_gates,
    space_gates_torch,
    space_gates_triton,
)
from tests.engine.kernels.where import DEVICES

ROUNDINGS = 8 * torch.finfo(torch.float32).eps
"""Of an exponential, a logarithm, a sum and a product, a few units each."""
FAST_ROUNDINGS = 64 * torch.finfo(torch.float32).eps
"""The same where a GPU multiplies an exponential's argument by a rounded constant: as many units
more as the argument, here below 40, is large."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [None, 5])
@pytest.mark.parametrize("num_tokens", [1, 3, 70])
def test_kernels_of_delta_gates(num_tokens: int, channels: int | None, device: str) -> None:
    shape = (4,) if channels is None else (4, channels)
    a = 12 * torch.randn(num_tokens, *shape)
    columns = torch.cat([a.flatten(1), 12 * torch.randn(num_tokens, 4)], dim=1).bfloat16()
    a, b = columns[:, :-4].view(num_tokens, *shape), columns[:, -4:]
    a_log, dt_bias = torch.randn(4), torch.randn(shape)
    _check(delta_gates_triton, delta_gates_torch, device, a, b, a_log, dt_bias, 2.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("limits", [(0.0, math.inf), (0.25, 2.0)])
def test_kernels_of_space_gates(limits: tuple[float, float], device: str) -> None:
    dt = (12 * torch.randn(70, 9)).bfloat16()[:, 2:]
    _check(
        space_gates_triton, space_gates_torch, device, dt, torch.randn(7), torch.randn(7), limits
    )


def _check(kernel: Callable[..., Any], twin: Callable[..., Any], device: str, *args: Any) -> None:
    """Compare a kernel with its twin in float64: softplus and sigmoid lose nothing at any size."""
    there = [each.to(device) if isinstance(each, torch.Tensor) else each for each in args]
    exact = [each.double() if isinstance(each, torch.Tensor) else each for each in args]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        wanted = twin(*exact)
    for got, expected in zip(kernel(*there), wanted, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.cpu().double(), expected, rtol=FAST_ROUNDINGS, atol=1e-37)


def test_delta_gates_are_float32_whatever_the_products_are() -> None:
    a, b = torch.randn(3, 4).bfloat16(), torch.randn(3, 4).bfloat16()
    a_log, dt_bias = torch.randn(4), torch.randn(4)
    decay, beta = delta_gates(a, b, a_log, dt_bias, beta_scale=2.0)
    for t in range(3):
        for h in range(4):
            step = math.log1p(math.exp(float(a[t, h]) + float(dt_bias[h])))
            wanted = -math.exp(float(a_log[h])) * step
            assert math.isclose(float(decay[t, h]), wanted, rel_tol=ROUNDINGS)
            wanted = 2.0 / (1.0 + math.exp(-float(b[t, h])))
            assert math.isclose(float(beta[t, h]), wanted, rel_tol=ROUNDINGS)


def test_delta_gates_by_channel() -> None:
    a, a_log = torch.randn(3, 4, 5), torch.randn(4)
    dt_bias = torch.randn(4, 5)
    decay, _ = delta_gates(a, torch.randn(3, 4), a_log, dt_bias)
    for k in range(5):
        alone, _ = delta_gates(a[..., k], torch.randn(3, 4), a_log, dt_bias[:, k])
        torch.testing.assert_close(decay[..., k], alone, rtol=ROUNDINGS, atol=0.0)


def test_space_gates_are_limited() -> None:
    dt, a_log = torch.tensor([[-20.0, 0.5, 3.0]]).bfloat16(), torch.randn(3)
    decay, step = space_gates(dt, a_log, torch.zeros(3), (0.25, 2.0))
    wanted = torch.tensor([[0.25, math.log1p(math.exp(0.5)), 2.0]])
    torch.testing.assert_close(step, wanted, rtol=ROUNDINGS, atol=0.0)
    torch.testing.assert_close(decay, -a_log.exp() * wanted, rtol=ROUNDINGS, atol=0.0)
