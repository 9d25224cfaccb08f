"""The interpreter as `tests.interpreter` quickens it computes what it does by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sampling.device.triton_support import INTERPRETED, jit, tl

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1")


@jit
def _doubled_in_order(values, descending: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.sort(values * 2, descending=descending)


@jit
def _order_kernel(x, out, total, width: tl.constexpr, descending: tl.constexpr):  # type: ignore[no-untyped-def]
    lane, row = tl.arange(0, width), tl.program_id(0)
    values = tl.load(x + row * width + lane)
    tl.store(out + row * width + lane, _doubled_in_order(values, descending))
    tl.store(total + row, tl.sum(values, 0) + tl.max(values, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("descending", [False, True])
def test_launches_follow_each_other(dtype: torch.dtype, descending: bool) -> None:
    """With functions of the language in device functions, which each launch replaces anew."""
    generator = torch.Generator().manual_seed(1)
    for width in (4, 64, 64):
        x = torch.randint(-50, 50, (3, width), generator=generator).to(dtype)
        out, total = torch.empty_like(x), torch.empty(3, dtype=dtype)
        _order_kernel[(3,)](x, out, total, width, descending)
        assert torch.equal(out, (x * 2).sort(1, descending=descending).values)
        assert torch.equal(total, x.sum(1) + x.amax(1))


def test_dtypes_are_those_of_numpy() -> None:
    from triton.runtime import interpreter

    wanted = {
        tl.int1: np.bool_,
        tl.uint8: np.uint8,
        tl.int64: np.int64,
        tl.bfloat16: np.uint16,  # as bits
        tl.float8e4nv: np.uint8,
        tl.float64: np.float64,
    }
    for element, dtype in wanted.items():
        assert interpreter._get_np_dtype(element) == dtype
        assert interpreter._get_np_dtype(tl.block_type(element, [4])) == dtype
        assert interpreter._get_np_dtype(tl.pointer_type(element)) == np.uint64


@jit
def _cast_kernel(x, out, width: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, width)
    tl.store(out + lane, tl.load(x + lane).to(out.dtype.element_ty))


@pytest.mark.parametrize("short", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_every_short_float_has_its_value(short: torch.dtype) -> None:
    width = 1 << 8 * short.itemsize
    x = torch.arange(width).to(torch.uint16 if short.itemsize == 2 else torch.uint8).view(short)
    value = x.float()  # Triton takes no subnormal bfloat16, and keeps the bits of what is no number
    x = x[(value == 0) | (value.abs() >= 2.0**-126)]
    x = torch.cat([x, x[: width - len(x)]])
    out = torch.empty(width)
    _cast_kernel[(1,)](x, out, width)
    assert torch.equal(out, x.float())


def test_bfloat16_is_the_upper_half() -> None:
    """Triton's interpreter truncates. It takes subnormal numbers for others, quickened or not."""
    x = torch.randn(1 << 12) * 2.0 ** torch.randint(-100, 100, (1 << 12,))
    x[:4] = torch.tensor([0.0, -0.0, float("inf"), -float("inf")])
    out = torch.empty_like(x, dtype=torch.bfloat16)
    _cast_kernel[(1,)](x, out, len(x))
    assert torch.equal(out.view(torch.int16), (x.view(torch.int32) >> 16).to(torch.int16))
    x = torch.full((4,), 2.0**-130)
    out = torch.empty_like(x, dtype=torch.bfloat16)
    _cast_kernel[(1,)](x, out, len(x))
    assert not torch.equal(out.float(), x)


@jit
def _table_kernel(x, y, products, quotients, dtype: tl.constexpr, width: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, width)
    at = lane[:, None] * width + lane[None, :]
    a, b = tl.load(x + lane)[:, None], tl.load(y + lane)[None, :]
    product = 3 * (a * b) + b + 1
    tl.static_assert(a.shape[0] == width and b.shape[0] == 1 and product.shape[0] == width)
    tl.static_assert(product.shape[1] == width and product.dtype == dtype)
    tl.store(products + at, product)
    tl.store(quotients + at, (a + b - b) / (b + a - a))


@pytest.mark.parametrize("x_dtype", [torch.float16, torch.float32, torch.int32, torch.uint8])
@pytest.mark.parametrize("y_dtype", [torch.float16, torch.float32, torch.int32, torch.int64])
def test_operands_are_matched(x_dtype: torch.dtype, y_dtype: torch.dtype) -> None:
    """Rows and columns and numbers, of types that differ; halves are divided as floats."""
    x, y = torch.arange(1, 9).to(x_dtype), torch.arange(3, 11).to(y_dtype)
    products, quotients = torch.empty(8, 8, dtype=torch.int64), torch.empty(8, 8)
    dtype = getattr(tl, str(torch.promote_types(x_dtype, y_dtype)).removeprefix("torch."))
    _table_kernel[(1,)](x, y, products, quotients, dtype, 8)
    assert torch.equal(products, 3 * x.long()[:, None] * y.long() + y.long() + 1)
    assert torch.equal(quotients, x.float()[:, None] / y.float())
