"""The gate of a shared expert against float64."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.experts.shared_gate import COLUMNS, SharedGate, shared_gate_triton
from tests.engine.kernels.where import DEVICES

EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("width", [48, COLUMNS + 40])
def test_twin(width: int) -> None:
    x, weight, out = _inputs(width)
    _check(SharedGate(weight)(x, out), x, weight, out)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [48, COLUMNS + 40])
def test_kernel(width: int, device: str) -> None:
    x, weight, out = _inputs(width)
    gated = shared_gate_triton(x.to(device), weight.to(device), out.to(device))
    _check(gated.cpu(), x, weight, out)


def _inputs(width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(3, width), torch.randn(1, width), torch.randn(3, width)


def _check(gated: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """Each product is a sum of `width` terms, whose error a sigmoid's slope of 1/4 makes no larger
    and its outputs multiply; the rest is a few roundings."""
    wanted = torch.sigmoid(x.double() @ weight.double().T) * out.double()
    largest = float((x.abs() * weight.abs()).sum(1).max())
    atol = x.shape[1] * EPS * largest * float(out.abs().max())
    torch.testing.assert_close(gated.double(), wanted, atol=atol, rtol=4 * EPS)
