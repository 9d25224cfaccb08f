from __future__ import annotations

import pytest
import torch

from engine.kernels.activation import (
    gate_by_sigmoid,
    gate_by_sigmoid_triton,
    silu_and_mul,
    silu_and_mul_torch,
    silu_and_mul_triton,
)
from tests.engine.kernels.where import DEVICES

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 5, 96])
def test_silu_and_mul(width: int, dtype: torch.dtype) -> None:
    gate_up = (3 * torch.randn(4, 2 * width)).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    out = silu_and_mul(gate_up)
    assert out.dtype == dtype
    # silu and the product are rounded once each; the exponential loses a few units more.
    rtol = torch.finfo(dtype).eps + 8 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(out.double(), gate / (1 + (-gate).exp()) * up, rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 700), (2, 1500)])
def test_kernel(rows: int, width: int, dtype: torch.dtype, device: str) -> None:
    gate_up = (3 * torch.randn(rows, 2 * width, device=device)).to(dtype)
    got, wanted = silu_and_mul_triton(gate_up), silu_and_mul_torch(gate_up)
    torch.testing.assert_close(got, wanted, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 700), (2, 1500)])
def test_gate_by_sigmoid(rows: int, width: int, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(rows, width, device=device).to(dtype)
    gate = (3 * torch.randn(rows, 2 * width, device=device)).to(dtype)[:, width:]  # rows lie apart
    wanted = x.double() * torch.sigmoid(gate.double())
    # The sigmoid and the product are rounded once each, which Triton's interpreter truncates.
    rtol = 3 * torch.finfo(dtype).eps + 8 * torch.finfo(torch.float32).eps
    for gated in (gate_by_sigmoid(x.clone(), gate), gate_by_sigmoid_triton(x.clone(), gate)):
        torch.testing.assert_close(gated.double(), wanted, rtol=rtol, atol=1e-7)
