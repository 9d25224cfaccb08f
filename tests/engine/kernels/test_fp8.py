"""Float8 rows: the scheme's bounds, and the same numbers on every device and in every kernel."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.activation import silu_and_mul, silu_and_mul_fp8
from engine.kernels.fp8 import (
    FP8,
    LARGEST,
    Fp8Rows,
    quantize_rows,
    quantize_rows_torch,
    quantize_rows_triton,
)
from engine.kernels.norm import rms_norm, rms_norm_fp8
from tests.engine.kernels.where import DEVICES

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def assert_equal_rows(rows: Fp8Rows, wanted: Fp8Rows) -> None:
    assert torch.equal(rows.scales.cpu(), wanted.scales.cpu())
    assert torch.equal(rows.values.cpu().float(), wanted.values.cpu().float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_within_half_a_step_of_itself(dtype: torch.dtype) -> None:
    x = (torch.randn(7, 65) * torch.logspace(-3, 3, 7)[:, None]).to(dtype)
    rows = quantize_rows(x)
    assert rows.values.dtype == FP8
    error = (rows.dequantized().double() - x.double()).abs()
    # Half a step is 1/16 of the value, or half of the least step 2^-9 of the format; the scale and
    # the division are rounded in float32 besides.
    half = torch.maximum(x.double().abs() / 16, rows.scales[:, None].double() * 2**-10)
    assert (error <= half * (1 + 1e-5)).all()


def test_the_largest_value_of_a_row_is_the_largest_of_the_format() -> None:
    rows = quantize_rows(torch.randn(5, 40))
    assert (rows.values.float().abs().amax(1) == LARGEST).all()


def test_zeros_stay_zeros() -> None:
    rows = quantize_rows(torch.zeros(2, 8))
    assert torch.equal(rows.dequantized(), torch.zeros(2, 8))


def test_a_scale_is_the_row_s_own() -> None:
    x = torch.randn(4, 32)
    alone = quantize_rows(x[2:3])
    together = quantize_rows(torch.cat([x * 100, x[2:3]]))
    assert torch.equal(together.values[-1:].float(), alone.values.float())
    assert torch.equal(together.scales[-1:], alone.scales)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "width"), [(1, 1), (3, 64), (5, 300)])
def test_kernel(num_rows: int, width: int, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(num_rows, width, device=device).to(dtype)
    assert_equal_rows(quantize_rows_triton(x), quantize_rows_torch(x))


# A reciprocal instead of a division takes one in 2,000 of these the other way.
@pytest.mark.parametrize("device", DEVICES)
def test_numbers_in_the_middle_of_two_of_the_format(device: str) -> None:
    """Every number of 8 bits over every largest one of 8 bits."""
    largest = torch.arange(1, 256)[:, None]
    numbers = (torch.arange(256)[:, None] * torch.exp2(-torch.arange(8))).flatten()[None]
    x = torch.cat([largest, torch.where(numbers <= largest, numbers, 0)], 1).bfloat16()
    assert_equal_rows(quantize_rows_triton(x.to(device)), quantize_rows_torch(x))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("has_residual", [False, True])
def test_the_norm_quantizes_what_it_would_return(has_residual: bool, device: str) -> None:
    x = torch.randn(6, 96, device=device).bfloat16()
    weight = torch.randn(96, device=device).bfloat16()
    residual = torch.randn(6, 96, device=device).bfloat16() if has_residual else None
    total = x if residual is None else x + residual
    rows = rms_norm_fp8(x, weight, 1e-5, residual)
    assert_equal_rows(rows, quantize_rows(rms_norm(total, weight, 1e-5)))
    assert residual is None or torch.equal(residual, total)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_activation_quantizes_what_it_would_return(device: str) -> None:
    gate_up = torch.randn(5, 2 * 77, device=device).bfloat16()
    assert_equal_rows(silu_and_mul_fp8(gate_up), quantize_rows(silu_and_mul(gate_up)))
