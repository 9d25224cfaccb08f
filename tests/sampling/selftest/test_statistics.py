"""The statistical tests against scipy, and by hand."""

import pytest
import torch
from scipy import stats

from sampling.selftest.statistics import MIN_EXPECTED, chi_square, poisson


@pytest.mark.parametrize("seed", range(5))
def test_chi_square_equals_scipy(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(20, generator=generator, dtype=torch.float64) + 0.5
    probabilities /= probabilities.sum()
    tokens = torch.multinomial(probabilities, 5000, replacement=True, generator=generator)
    counts = torch.bincount(tokens, minlength=20)
    expected = stats.chisquare(counts.numpy(), probabilities.numpy() * 5000)
    outcome = chi_square(counts, probabilities, 1e-8)
    assert outcome.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert outcome.statistic == f"chi2(19) = {expected.statistic:.1f}"
    assert outcome.threshold == f"{stats.chi2.isf(1e-8, 19):.1f}"


def test_small_cells_are_pooled_with_their_neighbours() -> None:
    expected = torch.tensor([500.0, *[MIN_EXPECTED / 4] * 9, 410.0], dtype=torch.float64)
    counts = torch.tensor([500, *[10] * 9, 410])
    outcome = chi_square(counts, expected / expected.sum(), 1e-8)
    assert outcome.statistic == "chi2(3) = 0.0"  # the ninth small cell goes with the last


def test_what_cannot_be_drawn_must_not_be() -> None:
    outcome = chi_square(torch.tensor([500, 499, 1]), torch.tensor([0.5, 0.5, 0.0]).double(), 1e-8)
    assert outcome.p_value == 0.0


def test_too_few_counts_are_an_error() -> None:
    with pytest.raises(ValueError, match="too few"):
        chi_square(torch.tensor([3, 3]), torch.tensor([0.5, 0.5]).double(), 1e-8)


@pytest.mark.parametrize(("count", "expected"), [(0, 32.8), (34, 33.6), (33, 33.0), (90, 32.8)])
def test_poisson_equals_scipy(count: int, expected: float) -> None:
    law = stats.poisson(expected)
    tails = min(law.cdf(count), law.sf(count - 1))
    outcome = poisson(count, expected, 1e-8)
    assert outcome.p_value == pytest.approx(min(1.0, 2 * tails), rel=1e-9)
    low, high = map(int, outcome.threshold.split(" to "))
    assert (outcome.p_value >= 1e-8) == (low <= count <= high)
