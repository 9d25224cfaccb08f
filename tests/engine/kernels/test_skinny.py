"""A product of d terms of both signs, summed in float32 in another order than the twin's."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.activation import silu_and_mul_torch
from engine.kernels.norm import rms_norm_torch
from engine.kernels.skinny import MAX_PRODUCT, Norm, is_skinny, launch_shape, skinny_linear
from tests.engine.kernels.where import DEVICES

EPS = 1e-6


def twin(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: Norm | None,
    gated: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    if norm is not None and norm.residual is not None:
        x = x + norm.residual
    normed = x if norm is None else rms_norm_torch(x, norm.weight, norm.eps)
    out = normed.float() @ weight.float().T + (0 if bias is None else bias.float())
    out = out.to(x.dtype)
    return (silu_and_mul_torch(out) if gated else out), x


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("front", ["nothing", "norm", "add and norm", "add and float32 norm"])
@pytest.mark.parametrize(("rows", "fan_in", "fan_out"), [(1, 96, 18), (3, 1000, 7), (1, 2304, 5)])
def test_kernel_equals_twin(
    rows: int, fan_in: int, fan_out: int, front: str, gated: bool, has_bias: bool, device: str
) -> None:
    torch.manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape).half().to(device)

    x, residual, norm_weight = some(rows, fan_in), some(rows, fan_in), some(fan_in)
    weight = some(fan_out * (1 + gated), fan_in) / fan_in**0.5
    bias = some(len(weight)) if has_bias else None
    norm = {
        "nothing": None,
        "norm": Norm(None, norm_weight, EPS),
        "add and norm": Norm(residual, norm_weight, EPS),
        "add and float32 norm": Norm(residual, norm_weight.float(), EPS),
    }[front]
    out, total = skinny_linear(x, weight, bias, norm=norm, gated=gated)
    wanted, wanted_total = twin(x, weight, bias, norm, gated)
    # A normed input may be rounded the other way: a unit of 2^-11 in each of the terms.
    torch.testing.assert_close(out, wanted, rtol=4e-3, atol=4e-3)
    assert torch.equal(total, wanted_total)


def test_only_few_rows_on_a_gpu_are_skinny() -> None:
    assert not is_skinny(torch.zeros(1, 64).half()), "no GPU"


def test_a_program_holds_a_row_of_the_weight() -> None:
    for exponent in range(4, MAX_PRODUCT.bit_length() + 1):
        for gated in (False, True):
            shape = launch_shape(1 << exponent, gated=gated)
            per_thread = shape.rows * (1 + gated) * (1 << exponent) / (32 * shape.warps)
            assert per_thread <= 128
