from __future__ import annotations

import pytest
import torch

from engine.kernels.activation import silu_and_mul, silu_and_mul_torch, silu_and_mul_triton
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
