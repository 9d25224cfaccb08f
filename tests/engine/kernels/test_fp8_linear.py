"""Float8 products against their definition in float64.

Tensor cores keep 13 bits after the leading one of a sum of `CHUNK` products, and drop the rest of
each product: on average half of 2^-13 of the largest partial sum, always towards zero, and for
CHUNK products at most CHUNK * 2^-13 of it. Partial sums of random signs are some sixth of the
products' absolute values together, so that the expected error is near CHUNK / 12 * 2^-13 of what
rounding leaves, which cancels by its signs to some 2^-13 of those values; four times that is
allowed. It is far above float32's own rounding, which the CPU has.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.kernels.fp8 import TILE, Fp8Rows, empty_rows, in_whole_tiles, quantize_rows
from engine.kernels.fp8_linear import (
    DEPTH,
    FEW,
    ROWS,
    Fp8Linear,
    arrivals_of,
    fp8_linear_triton,
)
from sampling.device.triton_support import INTERPRETED
from tests.engine.kernels.where import DEVICES


def reference(x: Fp8Rows, weight: Fp8Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """The product in float64, and that of the absolute values, which bounds any partial sum."""
    left, right = x.values.double(), weight.values.double()
    scales = x.scales.double()[:, None] * weight.scales.double()
    return left @ right.T * scales, left.abs() @ right.abs().T * scales


def assert_is_product(
    out: torch.Tensor, x: Fp8Rows, weight: Fp8Rows, bias: torch.Tensor | None, *, exact: bool
) -> None:
    wanted, size = reference(x, weight)
    atol = size * (2.0**-20 if exact else 2.0**-11)
    rounded = torch.finfo(out.dtype).eps
    if bias is not None:
        atol = atol + rounded * wanted.abs()  # rounded once before the bias
        wanted = wanted + bias.double()
    error = (out.double() - wanted).abs()
    assert (error <= atol + rounded * wanted.abs() + 1e-9).all()


def some(num_rows: int, width: int, device: str) -> Fp8Rows:
    return quantize_rows(torch.randn(num_rows, width, device=device).bfloat16())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 3, 17, FEW, FEW + 1])
def test_product(num_rows: int, dtype: torch.dtype, has_bias: bool, device: str) -> None:
    weight = some(48, 160, device)
    bias = torch.randn(48, device=device).to(dtype) if has_bias else None
    x = torch.randn(num_rows, 160, device=device).to(dtype)
    product = Fp8Linear(weight, bias, dtype)
    rows = quantize_rows(x)
    out = product(x)
    assert out.dtype == dtype
    assert_is_product(out, rows, weight, bias, exact=device == "cpu")
    assert torch.equal(product(rows), out), "quantized beforehand or not"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("num_tokens", "width", "num_channels"),
    [
        (1, DEPTH, ROWS),
        (3, 100, 40),
        (20, 8 * DEPTH, 70),
        (2, 8 * DEPTH + 16, ROWS),
        (FEW // 2 + 1, 8 * DEPTH, ROWS),  # in two blocks of tokens
    ],
)
def test_kernel(num_tokens: int, width: int, num_channels: int, device: str) -> None:
    x, weight = some(num_tokens, width, device), some(num_channels, width, device)
    arrivals = arrivals_of(num_channels, x.values.device)
    bias = torch.randn(num_channels, device=device)
    out = fp8_linear_triton(x, weight, arrivals, bias, torch.float32)
    assert_is_product(out, x, weight, bias, exact=INTERPRETED)
    assert not arrivals.any(), "ready for the next product"


@pytest.mark.parametrize("num_rows", [1, TILE, TILE + 1])
def test_rows_are_followed_by_room_to_the_end_of_a_tile(num_rows: int) -> None:
    rows = empty_rows(num_rows, 48, torch.device("cpu"))
    rows.values.copy_(torch.randn(num_rows, 48))
    rows.scales.fill_(2.0)
    whole = in_whole_tiles(rows)
    assert len(whole.values) == len(whole.scales) == -(-num_rows // TILE) * TILE
    assert torch.equal(whole.values[:num_rows].float(), rows.values.float())
    assert torch.equal(whole.scales[:num_rows], rows.scales)


def test_rows_without_room_stay_as_they_are() -> None:
    for num_rows in (3, TILE):
        rows = some(num_rows, 48, "cpu")
        assert in_whole_tiles(rows).values.shape == rows.values.shape
    room = empty_rows(3, 48, torch.device("cpu"))
    assert in_whole_tiles(room._replace(scales=torch.ones(3))).values.shape == (3, 48)


@pytest.mark.gpu
@pytest.mark.parametrize(("num_channels", "width"), [(4096, 12288), (6144, 4096)])
def test_a_token_s_sums_do_not_depend_on_the_others(num_channels: int, width: int) -> None:
    weight = some(num_channels, width, "cuda")
    product = Fp8Linear(weight, None, torch.bfloat16)
    x = torch.randn(FEW, width, device="cuda").bfloat16()
    whole = product(x)
    for count in (2, 3, 16, 17, 40, 65, 100):
        assert torch.equal(product(x[:count]), whole[:count]), count
    alone = product(x[:1])  # in a kernel, and so in an order, of its own
    assert_is_product(alone, quantize_rows(x[:1]), weight, None, exact=True)
    assert_is_product(whole, quantize_rows(x), weight, None, exact=False)


@pytest.mark.gpu
def test_a_graph_s_replays_are_equal() -> None:
    product = Fp8Linear(some(4096, 4096, "cuda"), None, torch.bfloat16)
    x = torch.randn(5, 4096, device="cuda").bfloat16()
    wanted = replayed(product, x)
    for _ in range(3):
        assert torch.equal(replayed(product, x), wanted)
    assert torch.equal(product(x), wanted)


def replayed(product: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The last of three products of one graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            out = product(x)
    graph.replay()
    torch.cuda.synchronize()
    return out.clone()
