"""Float8 with a scale a span: the scheme, and its products against float64."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.fp8 import FP8, Fp8Rows
from engine.kernels.quantized.fp8_block_linear import (
    FEW,
    Fp8BlockLinear,
    fp8_block_linear_triton,
)
from engine.kernels.quantized.fp8_blocks import (
    SPAN,
    Fp8Blocks,
    quantize_spans,
    quantize_spans_torch,
    quantize_spans_triton,
)
from sampling.device.triton_support import INTERPRETED
from tests.engine.kernels.where import DEVICES

SHAPES = [(48, 512), (33, 200), (20, 128), (9, 1300)]
"""Channels and inputs, even and ragged."""


def some(num_rows: int, width: int, device: str) -> Fp8Blocks:
    return quantize_spans(torch.randn(num_rows, width, device=device).bfloat16())


def wide(x: Fp8Blocks | Fp8Rows) -> torch.Tensor:
    """The values in float64, by their definition."""
    scales = x.scales.double()
    if scales.dim() == 1:
        return x.values.double() * scales[:, None]
    spread = torch.stack([scales[:, k // SPAN] for k in range(x.values.shape[1])], 1)
    return x.values.double() * spread


def assert_is_product(
    out: torch.Tensor,
    x: Fp8Blocks | Fp8Rows,
    weight: Fp8Blocks | Fp8Rows,
    bias: torch.Tensor | None,
    *,
    exact: bool,
) -> None:
    left, right = wide(x), wide(weight)
    wanted, size = left @ right.T, left.abs() @ right.abs().T
    # As in test_fp8_linear.
    atol = size * (2.0**-20 if exact else 2.0**-11)
    rounded = torch.finfo(out.dtype).eps
    if bias is not None:
        atol = atol + rounded * wanted.abs()
        wanted = wanted + bias.double()
    assert ((out.double() - wanted).abs() <= atol + rounded * wanted.abs() + 1e-9).all()


@pytest.mark.parametrize("width", [SPAN, 200, 1300])
def test_a_span_is_within_half_a_step_of_itself(width: int) -> None:
    x = torch.randn(5, width) * torch.logspace(-3, 3, 5)[:, None]
    rows = quantize_spans(x)
    scales = rows.scales.repeat_interleave(SPAN, 1)[:, :width].double()
    half = torch.maximum(x.double().abs() / 16, scales * 2**-10)
    assert ((rows.dequantized().double() - x.double()).abs() <= half * (1 + 1e-5)).all()
    largest = rows.values.float().abs()
    assert (largest[:, :SPAN].amax(1) == 448).all(), "a scale is the span's own"
    assert (largest[:, -(width % SPAN or SPAN) :].amax(1) == 448).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("num_rows", "width"), [(1, 128), (3, 200), (5, 1300)])
def test_quantizing_kernel(num_rows: int, width: int, device: str) -> None:
    x = torch.randn(num_rows, width, device=device).bfloat16()
    rows, twin = quantize_spans_triton(x), quantize_spans_torch(x)
    assert torch.equal(rows.scales, twin.scales)
    assert torch.equal(rows.values.float(), twin.values.float())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3, 130])
def test_product(num_rows: int, has_bias: bool, device: str) -> None:
    weight = some(48, 200, device)
    bias = torch.randn(48, device=device).bfloat16() if has_bias else None
    x = torch.randn(num_rows, 200, device=device).bfloat16()
    out = Fp8BlockLinear(weight, bias, torch.bfloat16)(x)
    assert_is_product(out, quantize_spans(x), weight, bias, exact=device == "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("num_channels", "width"), SHAPES)
@pytest.mark.parametrize("num_rows", [1, 19, 131])
def test_kernel(num_rows: int, num_channels: int, width: int, device: str) -> None:
    x, weight = some(num_rows, width, device), some(num_channels, width, device)
    bias = torch.randn(num_channels, device=device)
    out = fp8_block_linear_triton(x, weight, bias, torch.float32)
    assert_is_product(out, x, weight, bias, exact=INTERPRETED)


@pytest.mark.gpu
def test_blocks_that_are_whole_by_chance_alone_may_be_written() -> None:
    """As those of two modules of 64 channels, each with scales of its own."""
    values, scales = torch.randn(SPAN, SPAN, device="cuda").to(FP8), torch.ones(SPAN, 1)
    weight = Fp8Blocks(values, scales.cuda())
    linear = Fp8BlockLinear(weight, None, torch.bfloat16, has_blocks=False)
    x = torch.randn(FEW + 1, SPAN, device="cuda").bfloat16()
    for scale in (1.0, 2.0):
        weight.scales[64:] = scale
        linear.refresh()
        assert_is_product(linear(x), quantize_spans(x), weight, None, exact=False)


@pytest.mark.gpu
@pytest.mark.parametrize("num_blocks", [1, 6, 8])
@pytest.mark.parametrize("num_rows", [1, 2, FEW, FEW + 1, 130, 256, 1001])
def test_whole_blocks_by_the_library(num_rows: int, num_blocks: int) -> None:
    width = num_blocks * SPAN
    values = torch.randn(512, width, device="cuda").to(FP8)
    scales = torch.rand(4, num_blocks, device="cuda").repeat_interleave(SPAN, 0)
    weight, x = Fp8Blocks(values, scales), torch.randn(num_rows, width, device="cuda").bfloat16()
    out = Fp8BlockLinear(weight, None, torch.bfloat16)(x)
    assert_is_product(out, quantize_spans(x), weight, None, exact=False)
