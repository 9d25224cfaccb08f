"""Tests of counts against probabilities, in plain Python: this room imports no torch, no scipy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

ODDS = 1e-6
"""Of a false alarm, for each statistical check."""
MIN_EXPECTED = 8.0
"""Cells that expect fewer are pooled."""


def chi_square(counts: Mapping[str, int], probabilities: Mapping[str, float]) -> tuple[float, int]:
    """Pearson's test of counts against probabilities.

    Args:
        counts: by token; tokens without a probability belong to the rest.
        probabilities: of some tokens; the rest has what is left to 1.

    Returns:
        The p-value, 0 where something was counted that cannot be, and the degrees of freedom, 0
        where the counts are too few for two cells.
    """
    total = sum(counts.values())
    rest = max(1.0 - sum(probabilities.values()), 0.0)
    others = sum(count for name, count in counts.items() if name not in probabilities)
    if rest * total < 1e-9 and others:
        return 0.0, 1
    cells, expected, pooled, pooled_expected = [], [], others, rest * total
    for name, probability in sorted(probabilities.items(), key=lambda item: -item[1]):
        if probability * total >= MIN_EXPECTED:
            cells.append(counts.get(name, 0))
            expected.append(probability * total)
        else:
            pooled += counts.get(name, 0)
            pooled_expected += probability * total
    if pooled_expected >= MIN_EXPECTED or not cells:
        cells.append(pooled)
        expected.append(pooled_expected)
    else:  # a few more in the smallest cell that is one
        cells[-1] += pooled
        expected[-1] += pooled_expected
    freedom = len(cells) - 1
    if freedom < 1:
        return 1.0, 0
    value = sum((c - e) ** 2 / e for c, e in zip(cells, expected, strict=True))
    return upper_gamma(freedom / 2, value / 2), freedom


def upper_gamma(shape: float, at: float) -> float:
    """The regularized upper incomplete gamma function Q, to about 1e-12 (Press et al., 6.2)."""
    if at <= 0.0:
        return 1.0
    scale = math.exp(-at + shape * math.log(at) - math.lgamma(shape))
    if at < shape + 1.0:
        term = total = 1.0 / shape
        for i in range(1, 1000):
            term *= at / (shape + i)
            total += term
            if term < total * 1e-15:
                break
        return max(1.0 - total * scale, 0.0)
    b = at + 1.0 - shape
    c, d = 1e300, 1.0 / b
    fraction = d
    for i in range(1, 1000):
        step = -i * (i - shape)
        b += 2.0
        d = 1.0 / (step * d + b)
        c = b + step / c
        fraction *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return scale * fraction


def drift_limit(chances: Sequence[float], odds: float = ODDS) -> float:
    """How far a count of events may be from the sum of their chances, at given odds.

    Each chance may depend on what came before it, as a token's does on the tokens before it: the
    difference S is a martingale, and Freedman's inequality bounds it by its variance
    V = sum p (1 - p): P(|S| >= t, V <= v) <= 2 exp(-t^2 / (2 v + 2 t / 3)). V is chance too, so v
    is the next power of two, and the odds are shared by the powers that there are.
    """
    v = 1.0
    while v < sum(p * (1.0 - p) for p in chances):
        v *= 2.0
    num_powers = max(len(chances), 2).bit_length()
    log = math.log(2.0 * num_powers / odds)
    # t^2 - (2 log / 3) t - 2 v log = 0
    return log / 3 + math.sqrt(log * log / 9 + 2.0 * v * log)
