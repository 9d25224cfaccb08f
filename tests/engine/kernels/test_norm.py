"""A row's relative error: the mean of d squares, a root, a division and two products in float32,
at most d + 8 roundings, and one rounding more for the normalized value and for the result in a
narrow type.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from engine.kernels.norm import (
    add_rms_norm,
    rms_norm,
    rms_norm_torch,
    rms_norm_triton,
    row_squares,
    row_squares_triton,
)
from tests.engine.kernels.where import DEVICES

EPS = 1e-5
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x, weight = x.double(), weight.double()
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def relative_tolerance(dtype: torch.dtype, width: int) -> float:
    own = torch.finfo(dtype).eps
    return (width + 8) * torch.finfo(torch.float32).eps / 2 + (own if own > 1e-6 else 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 64, 300])
def test_rms_norm(width: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, width).to(dtype), torch.randn(width).to(dtype)
    out = rms_norm(x, weight, EPS)
    assert out.dtype == dtype
    torch.testing.assert_close(
        out.double(), reference(x, weight), rtol=relative_tolerance(dtype, width), atol=1e-7
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_float32_weight_multiplies_before_the_one_rounding(
    dtype: torch.dtype, device: str
) -> None:
    """Of 3,000 numbers rounded twice some hundred are more than half a unit from the reference."""
    x, weight = torch.randn(10, 300, device=device).to(dtype), torch.randn(300, device=device)
    if device == "cpu" and dtype == torch.bfloat16:
        outs = [rms_norm_torch(x, weight, EPS)]  # Triton's interpreter truncates to bfloat16
    else:
        outs = [rms_norm_torch(x, weight, EPS), rms_norm_triton(x, weight, EPS)]
    rtol = torch.finfo(dtype).eps / 2 + relative_tolerance(torch.float32, 300)
    for out in outs:
        torch.testing.assert_close(out.double(), reference(x, weight), rtol=rtol, atol=1e-7)


def test_a_weight_for_each_head() -> None:
    x, weight = torch.randn(3, 4, 16), torch.randn(4, 16)
    torch.testing.assert_close(
        rms_norm(x, weight, EPS).double(),
        reference(x, weight),
        rtol=relative_tolerance(torch.float32, 16),
        atol=1e-7,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_is_the_sum_then_the_norm(dtype: torch.dtype) -> None:
    x, residual, weight = (torch.randn(s).to(dtype) for s in ((4, 33), (4, 33), (33,)))
    total = x + residual
    out, new_residual = add_rms_norm(x, residual, weight, EPS)
    assert new_residual is residual
    assert torch.equal(residual, total)
    assert torch.equal(out, rms_norm(total, weight, EPS))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 100), (2, 1024)])
def test_kernel(rows: int, width: int, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(rows, 2 * width, device=device).to(dtype)[:, :width]  # rows lie apart
    residual = torch.randn(rows, width, device=device).to(dtype)
    weight = torch.randn(width, device=device).to(dtype)
    # Triton's interpreter truncates to bfloat16 where a GPU rounds: a unit at each of two steps.
    close = partial(
        torch.testing.assert_close,
        rtol=3 * torch.finfo(dtype).eps + width * 1e-7,
        atol=1e-6,
    )
    close(rms_norm_triton(x, weight, EPS), rms_norm_torch(x, weight, EPS))
    total = x + residual
    out = rms_norm_triton(x, weight, EPS, residual)
    torch.testing.assert_close(residual, total, rtol=torch.finfo(dtype).eps, atol=0)
    close(out, rms_norm_torch(residual, weight, EPS))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_squares_of_rows(dtype: torch.dtype, device: str) -> None:
    """d products and sums of positive numbers: at most d roundings of float32, relatively."""
    x = torch.randn(7, 300).to(dtype)[:, 3:203]
    exact = x.double().square().sum(-1)
    for out in (row_squares(x), row_squares_triton(x.to(device)).cpu()):
        torch.testing.assert_close(out.double(), exact, rtol=200 * 2.0**-24, atol=0.0)
    alone = torch.cat([row_squares_triton(row[None].to(device)) for row in x]).cpu()
    assert torch.equal(alone, row_squares_triton(x.to(device)).cpu())
