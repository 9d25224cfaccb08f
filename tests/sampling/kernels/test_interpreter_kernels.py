"""The interpreter as `tests.interpreter` quickens it computes what it does by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sampling.triton_support import INTERPRETED, jit, tl

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
