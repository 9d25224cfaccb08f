"""The tests of counts: against scipy, and their odds by simulation with fixed seeds."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from scipy import special, stats

from server.conformance.statistics import chi_square, drift_limit, upper_gamma


@pytest.mark.parametrize("shape", [0.5, 1.0, 4.5, 30.0])
@pytest.mark.parametrize("at", [0.0, 0.1, 1.0, 5.0, 20.0, 60.0])
def test_the_incomplete_gamma_function(shape: float, at: float) -> None:
    assert upper_gamma(shape, at) == pytest.approx(
        special.gammaincc(shape, at), rel=1e-9, abs=1e-15
    )


def test_chi_square_pools_small_cells_and_the_rest() -> None:
    counts = {"a": 60, "b": 25, "c": 4, "x": 11}
    p_value, freedom = chi_square(counts, {"a": 0.6, "b": 0.25, "c": 0.03})
    value = (15 - 15) ** 2 / 15
    assert freedom == 2
    assert p_value == pytest.approx(stats.chi2.sf(value, 2))


def test_what_cannot_be_drawn_has_no_chance() -> None:
    assert chi_square({"a": 50, "b": 49, "x": 1}, {"a": 0.5, "b": 0.5})[0] == 0.0
    assert chi_square({"a": 100}, {"a": 1.0}) == (1.0, 0)


def test_p_values_are_uniform_where_all_is_well() -> None:
    generator, probabilities = random.Random(5), {"a": 0.5, "b": 0.3, "c": 0.15}
    names, weights = [*probabilities, "x"], [*probabilities.values(), 0.05]
    p_values = [
        chi_square(Counter(generator.choices(names, weights, k=400)), probabilities)[0]
        for _ in range(400)
    ]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-4


def test_a_drift_stays_within_its_limit_at_its_odds() -> None:
    """Events whose chances follow from those before: at odds of 0.1 fewer than that go beyond."""
    generator, beyond = random.Random(6), 0
    for _ in range(300):
        chances, hits, chance = [], 0, 0.5
        for _ in range(400):
            chances.append(chance)
            hit = generator.random() < chance
            hits += hit
            chance = 0.9 if hit else 0.4
        beyond += abs(hits - sum(chances)) > drift_limit(chances, odds=0.1)
    assert beyond < 30


def test_the_limit_grows_with_the_variance_alone() -> None:
    assert drift_limit([1.0] * 1000) < 25 < drift_limit([0.5] * 1000) < 130
