"""1 - exp(d) without cancellation, against 60 digits, and draft logits, in Triton's interpreter.

The bounds are those of the docstrings. In float64 the quotient (1 - w) / log(w), the product with d
and their operands round by at most 7 * 2^-53 together. In float32 the series' first term left out
is below 2^-8 / 9! = 2^-26 at d = -1/2, and its eight operations and their operands round by 2^-24
each, those of later terms damped by |d|.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling.device.triton_support import INTERPRETED, jit, tl
from sampling.noise import TILE
from sampling.speculative.ratio import draft_logits, minus_expm1, minus_expm1_f32

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter"),
    # The interpreter computes with numpy, which warns of log(0); what comes of it is not selected.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
N = 512


class Ids(NamedTuple):
    """What `draft_logits` reads of a `Source`."""

    vocab_size: int
    first_tile: int | None
    end_id: int | None


@jit
def _draft_logits_kernel(source, logits, slot, ids, out, n: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, n)
    tl.store(out + lane, draft_logits(source, logits, slot, tl.load(ids + lane)))


@pytest.mark.parametrize("is_whole", [True, False])
def test_ids_that_a_rank_does_not_hold_have_no_draft_logit(is_whole: bool) -> None:
    """Those before its own and those after them, beside which lie the logits of other rows."""
    first, end = (0, 2 * TILE + 5) if is_whole else (TILE, 2 * TILE + 5)
    source = Ids(end, None, None) if is_whole else Ids(3 * TILE, 1, end)
    logits = torch.arange(3.0 * (end - first)).reshape(3, end - first)
    ids = torch.tensor([-1, first - 1, first - 3, first, end - 1, end, end + 7, first + 2])
    out = torch.zeros(len(ids), dtype=torch.float64)
    _draft_logits_kernel[(1,)](source, logits, 1, ids, out, n=len(ids))
    held = [first <= token_id < end for token_id in ids.tolist()]
    wanted = [
        float(logits[1, token_id - first]) if own else -math.inf
        for token_id, own in zip(ids.tolist(), held, strict=True)
    ]
    assert out.tolist() == wanted


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
