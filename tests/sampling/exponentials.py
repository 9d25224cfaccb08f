"""Exponentials of the noise contract, held against 60 digits."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import torch
from torch import Tensor

ARGUMENTS = [
    *(2.0**-k for k in (65, 60, 55, 54, 53, 52, 40, 24, 10, 3, 1)),
    *(1.37 * 2.0**-k for k in (60, 54, 53, 31, 20, 5)),
    *(0.25, 0.4999999999999999, 0.5000000000000001, 0.9, 1 - 2.0**-30, 1 - 2.0**-53),
    *np.random.default_rng(2).random(200).tolist(),
    *(2.0 ** -np.random.default_rng(3).uniform(0, 60, 200)).tolist(),
]


def worst_error(exponential: Callable[[Tensor], Tensor]) -> float:
    """The largest relative error against -ln(1 - u) to 60 digits."""
    worst = Decimal(0)
    with localcontext() as context:
        context.prec = 60
        values = exponential(torch.tensor(ARGUMENTS, dtype=torch.float64))
        for u, value in zip(ARGUMENTS, values.tolist(), strict=True):
            exact = -(1 - Decimal(u)).ln()
            worst = max(worst, abs(Decimal(value) / exact - 1))
    return float(worst)
