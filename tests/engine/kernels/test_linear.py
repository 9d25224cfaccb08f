from __future__ import annotations

import pytest
import torch

from engine.kernels.linear import (
    FEW_INPUTS,
    SMALL_WEIGHTS,
    LaidOut,
    linear,
    logits_linear,
    round_rows,
)


def test_row_counts_are_few_and_waste_little() -> None:
    rounded = [round_rows(count) for count in range(1, 2049)]
    assert all(0 <= up - count <= count / 4 for count, up in enumerate(rounded, start=1))
    assert len(set(rounded)) < 45, "each is compiled and kept by oneDNN"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 9, 33])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(rows: int, has_bias: bool, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, 40).to(dtype), torch.randn(24, 40).to(dtype)
    bias = torch.randn(24).to(dtype) if has_bias else None
    wanted = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    # 40 products of values up to 5, summed in float32; rounded once to the narrow type.
    atol = 40 * 25 * torch.finfo(torch.float32).eps
    rtol = torch.finfo(dtype).eps
    torch.testing.assert_close(
        linear(weight, bias)(x).double(), wanted, rtol=rtol, atol=max(atol, rtol)
    )


@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [
        (64, FEW_INPUTS),
        (64, FEW_INPUTS + 8),
        (SMALL_WEIGHTS // 64, 64),
        (SMALL_WEIGHTS // 64 + 8, 64),
    ],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_small_and_large_weights(rows: int, outputs: int, inputs: int) -> None:
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    wanted = x.double() @ weight.double().T + bias
    # Products of values up to 6, summed in float32.
    atol = inputs * 36 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(linear(weight, bias)(x).double(), wanted, rtol=0.0, atol=atol)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_are_float32(dtype: torch.dtype, device: str) -> None:
    hidden = torch.randn(3, 32, device=device).to(dtype)
    weight = torch.randn(50, 32, device=device).to(dtype)
    logits = logits_linear(LaidOut(weight))(hidden)
    assert logits.dtype == torch.float32
    exact = device == "cuda" or dtype == torch.float32  # never rounded to the narrow type
    rtol = 1e-5 if exact else torch.finfo(dtype).eps
    torch.testing.assert_close(
        logits.double(), hidden.double() @ weight.double().T, rtol=rtol, atol=max(2e-5, rtol)
    )
