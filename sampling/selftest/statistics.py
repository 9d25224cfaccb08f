"""Statistical tests of counts against probabilities, without scipy: torch.special has the laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MIN_EXPECTED = 40.0
"""Cells expecting fewer are pooled with their neighbours: the chi-square law then holds far into
its tail."""


class Comparison(NamedTuple):
    """The result of a statistical test.

    Attributes:
        statistic: what was computed, as text.
        threshold: what it is compared with, as text.
        p_value: probability of a statistic at least as extreme if all is well.
    """

    statistic: str
    threshold: str
    p_value: float


def chi_square(counts: Tensor, probabilities: Tensor, odds: float) -> Comparison:
    """Pearson's chi-square test of counts against probabilities.

    Args:
        counts: integer [cells].
        probabilities: float64 [cells], summing to 1. Where one is 0 nothing may be counted.
        odds: of a false alarm, for the threshold.

    Raises:
        ValueError: the counts are too few for two pooled cells.
    """
    total = int(counts.sum())
    impossible = int(counts[probabilities == 0.0].sum())
    if impossible:
        return Comparison(f"{impossible} of probability 0", "none", 0.0)
    cells, wanted = _pooled(counts.double(), probabilities.double() * total)
    freedom = len(cells) - 1
    if freedom < 1:
        raise ValueError(f"{total} counts are too few for {len(counts)} cells")
    value = float(((cells - wanted) ** 2 / wanted).sum())
    limit = _root(lambda x: _chi_square_tail(x, freedom) - odds, 0.0, 100.0 * freedom + 1000.0)
    p_value = _chi_square_tail(value, freedom)
    return Comparison(f"chi2({freedom}) = {value:.1f}", f"{limit:.1f}", p_value)


def poisson(count: int, expected: float, odds: float) -> Comparison:
    """Two-sided test of a count of rare events against its expectation.

    Args:
        count: how many there were.
        expected: the mean of the Poisson law.
        odds: of a false alarm, for the threshold.
    """
    below, above = _poisson_at_most(count, expected), _poisson_at_least(count, expected)
    low = high = int(expected)
    while low >= 0 and _poisson_at_most(low, expected) * 2 >= odds:
        low -= 1
    while _poisson_at_least(high, expected) * 2 >= odds:
        high += 1
    return Comparison(
        f"{count} of {expected:.1f}", f"{low + 1} to {high - 1}", min(1.0, 2 * min(below, above))
    )


def _pooled(counts: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Pool neighbouring cells until each expects `MIN_EXPECTED`."""
    group, groups, sum_expected = 0, [], 0.0
    for cell in expected.tolist():
        groups.append(group)
        sum_expected += cell
        if sum_expected >= MIN_EXPECTED:
            group, sum_expected = group + 1, 0.0
    last = max(group - 1, 0)  # what is left over joins the last full group
    index = torch.tensor(groups).clamp(max=last)
    zeros = torch.zeros(last + 1, dtype=torch.float64)
    return zeros.index_add(0, index, counts), zeros.index_add(0, index, expected)


def _chi_square_tail(value: float, freedom: int) -> float:
    """P(X >= value) of the chi-square law."""
    return _gammaincc(freedom / 2, value / 2)


def _poisson_at_most(count: int, expected: float) -> float:
    return _gammaincc(count + 1.0, expected) if count >= 0 else 0.0


def _poisson_at_least(count: int, expected: float) -> float:
    if count <= 0:
        return 1.0
    return float(torch.special.gammainc(_double(count), _double(expected)))


def _gammaincc(shape: float, at: float) -> float:
    return float(torch.special.gammaincc(_double(shape), _double(at)))


def _double(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Bisect for the point at which a decreasing function crosses 0."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return low
