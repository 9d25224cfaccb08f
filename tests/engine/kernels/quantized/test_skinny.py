"""Products of a lone quantised row, with what surrounds them, against their parts.

The input is that which the kernels in front of a product make; the product is compared with its
definition in float64: float32's sums of up to some thousand numbers are within 2^-20 of the sum of
absolute values, a result is rounded once, and twice where a bias follows.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.kernels.fp8 import Fp8Rows, quantize_rows_torch
from engine.kernels.norm import rms_norm_torch
from engine.kernels.quantized.fp8_blocks import Fp8Blocks, quantize_spans_torch
from engine.kernels.quantized.fp8_skinny import fp8_skinny_linear
from engine.kernels.quantized.int4 import Int4Groups, pack
from engine.kernels.quantized.int4_skinny import int4_skinny_linear
from engine.kernels.quantized.launch import LoneShape
from engine.kernels.skinny import Norm
from tests.engine.kernels.where import DEVICES

EPS = 1e-6
SMALL = LoneShape(2, 4, 3)
"""Several tiles a program, the last of them ragged."""
FRONTS = ["nothing", "norm", "add and norm"]
SHAPES = [(18, 96), (7, 260), (5, 2304)]


def front_of(name: str, x: torch.Tensor) -> tuple[Norm | None, torch.Tensor, torch.Tensor]:
    """A norm for the kernel, and the input and sum that it makes."""
    weight, residual = torch.rand_like(x[0]) + 0.5, torch.randn_like(x)
    total = x + residual if name == "add and norm" else x
    if name == "nothing":
        return None, x, x
    norm = Norm(residual if name == "add and norm" else None, weight, EPS)
    return norm, rms_norm_torch(total, weight, EPS), total


def assert_close(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    size: torch.Tensor,
    gated: bool,
    bias: torch.Tensor | None,
    slack: float = 0.0,
) -> None:
    """Compare with x @ weight.T, both float64; `size` [out] bounds the sum of absolute values."""
    wanted, eps = x @ weight.T, torch.finfo(out.dtype).eps
    atol = size * (2.0**-20 + slack) + 1e-9
    if bias is not None:
        atol = atol + eps * wanted.abs()
        wanted = wanted + bias.double()
    atol = atol + eps * wanted.abs()
    if gated:
        (gate, up), (gate_off, up_off) = wanted.chunk(2, 1), atol.chunk(2, 1)
        wanted = gate * gate.sigmoid() * up
        # silu's slope is at most 1.1, its value is no larger than its input's; rounded twice.
        atol = 1.1 * gate_off * (up.abs() + up_off) + gate.abs() * up_off + 3 * eps * wanted.abs()
    assert ((out.double() - wanted).abs() <= atol).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_span", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(("channels", "width"), SHAPES)
def test_float8(
    channels: int, width: int, front: str, gated: bool, by_span: bool, device: str
) -> None:
    torch.manual_seed(channels)
    quantize: Any = quantize_spans_torch if by_span else quantize_rows_torch
    x = torch.randn(1, width, device=device).half()
    norm, normed, total = front_of(front, x)
    weight = quantize(torch.randn(channels * (1 + gated), width, device=device) / width**0.5)
    bias = None if front == "norm" else torch.randn(len(weight.values), device=device).half()
    out, sums = fp8_skinny_linear(
        x, weight, bias, torch.float16, norm=norm, gated=gated, shape=SMALL
    )
    assert torch.equal(sums, total)
    rows: Fp8Rows | Fp8Blocks = quantize(normed)
    wide, values = weight.dequantized().double(), rows.dequantized().double()
    # An input whose norm is rounded the other way may move to the next float8 number.
    slack = 2.0**-9 if norm else 0.0
    assert_close(out, values, wide, values.abs() @ wide.abs().T, gated, bias, slack)
    if norm is None:
        again, _ = fp8_skinny_linear(rows, weight, bias, torch.float16, gated=gated, shape=SMALL)
        assert torch.equal(again, out), "rounded beforehand or not"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(
    ("channels", "width", "group"), [(18, 512, 128), (7, 320, 32), (5, 2304, 256), (9, 256, 64)]
)
def test_int4(
    channels: int, width: int, group: int, front: str, gated: bool, zeros: bool, device: str
) -> None:
    x = torch.randn(1, width, device=device).half()
    norm, normed, total = front_of(front, x)
    weight, wide = some_int4(channels * (1 + gated), width, group, device, zeros=zeros)
    bias = None if front == "norm" else torch.randn(len(wide), device=device).half()
    out, sums = int4_skinny_linear(x, weight, bias, norm=norm, gated=gated, shape=SMALL)
    assert torch.equal(sums, total)
    values = normed.double()
    # Zeros are subtracted from whole sums; a normed input may be rounded the other way.
    size = values.abs() @ (wide.abs() + 15 * 1.5 / 128).T
    assert_close(out, values, wide, size, gated, bias, 2.0**-11 if norm else 0.0)


def some_int4(
    channels: int, width: int, group: int, device: str, *, zeros: bool
) -> tuple[Int4Groups, torch.Tensor]:
    """A weight, and its values in float64."""
    generator = torch.Generator().manual_seed(width)
    q = torch.randint(0, 16, (channels, width), dtype=torch.uint8, generator=generator)
    scales = (torch.rand(channels, width // group, generator=generator).half() + 0.5) / 128
    points = torch.randint(0, 16, scales.shape, dtype=torch.uint8, generator=generator)
    zero = points if zeros else torch.full_like(points, 8)
    wide = (q.double() - zero.double().repeat_interleave(group, 1)) * (
        scales.double().repeat_interleave(group, 1)
    )
    weight = pack(q.to(device), scales.to(device), points.to(device) if zeros else None, group)
    return weight, wide.to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [2.0**-60, 2.0**60])
def test_small_and_large_inputs_of_int4(size: float, device: str) -> None:
    weight, wide = some_int4(6, 256, 64, device, zeros=True)
    x = torch.randn(1, 256, device=device) * size
    out, _ = int4_skinny_linear(x, weight, None, shape=SMALL)
    values = x.double()
    assert_close(out, values, wide, values.abs() @ (wide.abs() + 15 * 1.5 / 128).T, False, None)
