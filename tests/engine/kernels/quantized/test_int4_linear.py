"""Products with 4-bit weights against their definition in float64.

Differences q - z are exact in the input's type and products of them with inputs are exact in
float32, so that only sums are rounded: within 2^-18 of the sum of absolute values for some hundred
to thousand of them (each of n sums of float32 errs by 2^-24 of a partial sum, and n grows with the
depth of trees and loops, some 64 here; tensor cores align the products of one instruction and drop
what is below 2^-23 of the largest).
"""

from __future__ import annotations

import pytest
import torch

from engine.kernels.quantized.int4 import Int4Groups, pack
from engine.kernels.quantized.int4_few import int4_few_triton
from engine.kernels.quantized.int4_linear import Int4Linear, int4_linear_triton
from engine.kernels.quantized.int4_unpack import dequantize_triton
from sampling.device.triton_support import INTERPRETED
from tests.engine.kernels.where import DEVICES

SHAPES = [(48, 512, 128), (33, 320, 32), (20, 256, 64), (17, 384, 384), (10, 1024, 1024)]
"""Channels, inputs and group: even and ragged, groups of each kind, whole channels."""
DOT_DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
"""The interpreter's dot knows no bfloat16."""


def some(
    num_channels: int, width: int, group: int, device: str, *, zeros: bool
) -> tuple[Int4Groups, torch.Tensor]:
    """A weight, and its values in float64."""
    generator = torch.Generator().manual_seed(width)
    q = torch.randint(0, 16, (num_channels, width), dtype=torch.uint8, generator=generator)
    num_groups = width // group
    scales = torch.rand(num_channels, num_groups, generator=generator).half() + 0.5
    points = torch.randint(0, 16, scales.shape, dtype=torch.uint8, generator=generator)
    zero = points if zeros else torch.full_like(points, 8)
    wide = (
        q.double() - zero.double().repeat_interleave(group, 1)
    ) * scales.double().repeat_interleave(group, 1)
    weight = pack(q.to(device), scales.to(device), points.to(device) if zeros else None, group)
    return weight, wide.to(device)


def assert_is_product(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    wanted = x.double() @ weight.T
    size = x.double().abs() @ (weight.abs() + 8 * 1.5).T  # zeros are subtracted from whole sums
    rounded = torch.finfo(out.dtype).eps
    atol = size * 2.0**-18
    if bias is not None:
        atol = atol + rounded * wanted.abs()
        wanted = wanted + bias.double()
    assert ((out.double() - wanted).abs() <= atol + rounded * wanted.abs()).all()


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("num_channels", "width", "group"), SHAPES)
def test_packing_keeps_the_numbers(num_channels: int, width: int, group: int, zeros: bool) -> None:
    weight, wide = some(num_channels, width, group, "cpu", zeros=zeros)
    assert weight.words.shape[1] * 8 >= width
    # Two float32 roundings at most: the difference is exact, the product is not.
    torch.testing.assert_close(weight.dequantized().double(), wide, rtol=2**-23, atol=0)


@pytest.mark.parametrize("width", [128, 256, 512])
def test_packed_tensors_are_contiguous(width: int) -> None:
    """AWQ's numbers come inputs first, and kernels know no strides."""
    q = torch.randint(0, 16, (width, 24), dtype=torch.uint8)
    scales = torch.rand(width // 32, 24)
    packed = pack(q.t(), scales.t(), scales.t().to(torch.uint8), 32)
    assert packed.zeros is not None
    assert all(each.is_contiguous() for each in (packed.words, packed.scales, packed.zeros))
    assert torch.equal(packed.numbers()[:, :width], q.t())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("num_channels", "width", "group"), SHAPES)
@pytest.mark.parametrize("num_rows", [1, 5, 8])
def test_few_rows(
    num_rows: int, num_channels: int, width: int, group: int, zeros: bool, device: str
) -> None:
    weight, wide = some(num_channels, width, group, device, zeros=zeros)
    x = torch.randn(num_rows, width, device=device).to(DOT_DTYPE)
    bias = torch.randn(num_channels, device=device).to(DOT_DTYPE) if zeros else None
    assert_is_product(int4_few_triton(x, weight, bias), x, wide, bias)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("num_channels", "width", "group"), SHAPES)
@pytest.mark.parametrize("num_rows", [1, 19, 131])
def test_kernel(
    num_rows: int, num_channels: int, width: int, group: int, zeros: bool, device: str
) -> None:
    weight, wide = some(num_channels, width, group, device, zeros=zeros)
    x = torch.randn(num_rows, width, device=device).to(DOT_DTYPE)
    bias = torch.randn(num_channels, device=device).to(DOT_DTYPE) if zeros else None
    assert_is_product(int4_linear_triton(x, weight, bias), x, wide, bias)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("num_channels", "width", "group"), SHAPES)
def test_dequantizing(num_channels: int, width: int, group: int, zeros: bool, device: str) -> None:
    weight, _ = some(num_channels, width, group, device, zeros=zeros)
    values = dequantize_triton(weight, DOT_DTYPE)
    assert torch.equal(values, weight.dequantized().to(DOT_DTYPE))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_inputs_in_the_order_of_their_groups(device: str) -> None:
    weight, wide = some(24, 256, 64, device, zeros=True)
    x = torch.randn(3, 256, device=device).bfloat16()
    order = torch.randperm(256, generator=torch.Generator().manual_seed(3)).to(device)
    assert_is_product(Int4Linear(weight, None, order)(x), x[:, order], wide, None)


@pytest.mark.gpu
def test_a_row_s_sums_do_not_depend_on_the_others() -> None:
    weight, _ = some(4096, 4096, 128, "cuda", zeros=True)
    x = torch.randn(300, 4096, device="cuda").bfloat16()
    whole = int4_linear_triton(x, weight, None)
    for count in (17, 100):
        assert torch.equal(int4_linear_triton(x[:count], weight, None), whole[:count]), count
    few = int4_few_triton(x[:8], weight, None)
    for count in (1, 2, 5):
        assert torch.equal(int4_few_triton(x[:count], weight, None), few[:count]), count
