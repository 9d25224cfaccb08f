from __future__ import annotations

import math

import torch

from engine.kernels.recurrent.gates import delta_gates, space_gates

ROUNDINGS = 8 * torch.finfo(torch.float32).eps
"""Of an exponential, a logarithm, a sum and a product, a few units each."""


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
