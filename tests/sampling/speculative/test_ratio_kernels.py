"""1 - exp(d) without cancellation, against 60 digits, in Triton's interpreter.

The bounds are those of the docstrings. In float64 the quotient (1 - w) / log(w), the product with d
and their operands round by at most 7 * 2^-53 together. In float32 the series' first term left out
is below 2^-8 / 9! = 2^-26 at d = -1/2, and its eight operations and their operands round by 2^-24
each, those of later terms damped by |d|.
"""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling.device.triton_support import INTERPRETED, jit, tl
from sampling.speculative.ratio import minus_expm1, minus_expm1_f32

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter"),
    # The interpreter computes with numpy, which warns of log(0); what comes of it is not selected.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
N = 512


@jit
def _expm1_kernel(d, out, wide: tl.constexpr, n: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, n)
    values = tl.load(d + lane)
    if wide:
        tl.store(out + lane, minus_expm1(values))
    else:
        tl.store(out + lane, minus_expm1_f32(values))


def worst_error(d: Tensor, values: Tensor) -> float:
    """The largest relative error of `values` as 1 - exp(d)."""
    worst = Decimal(0)
    with localcontext() as context:
        context.prec = 60
        for x, value in zip(d.tolist(), values.tolist(), strict=True):
            worst = max(worst, abs(Decimal(value) / (1 - Decimal(x).exp()) - 1))
    return float(worst)


def arguments() -> Tensor:
    """float64 [N], below 0: evenly in their logarithm from 2^-60 to 2^7, and around -1/2."""
    around = -0.5 + np.linspace(-1e-3, 1e-3, 64)
    spread = -(2.0 ** np.linspace(-60, 7, N - len(around)))
    return torch.from_numpy(np.concatenate((spread, around)))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 2.0**-50), (torch.float32, 2.0**-22)])
def test_no_digits_are_lost_near_zero(dtype: torch.dtype, bound: float) -> None:
    d = arguments().to(dtype)
    out = torch.empty_like(d)
    _expm1_kernel[(1,)](d, out, wide=dtype == torch.float64, n=N)
    assert worst_error(d, out) < bound
    assert worst_error(d, 1.0 - d.exp()) > 0.5  # the plain difference loses all of them


def test_the_ends_are_exact() -> None:
    d = torch.full((N,), -torch.inf, dtype=torch.float64)
    d[0] = -(2.0**-80)
    out = torch.empty_like(d)
    _expm1_kernel[(1,)](d, out, wide=True, n=N)
    assert out[0] == 2.0**-80
    assert (out[1:] == 1.0).all()
