"""The noise of other servers ends where their sources say, and tails win by it as often as derived.

Seeds are fixed, so outcomes are; each count had odds of 1e-6 of being refused when its seed was
chosen.
"""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.noise_schemes import (
    SCHEMES,
    WORDS,
    Scheme,
    count,
    expected_wins,
    least_ranks,
    most_noise,
)
from sampling.selftest.statistics import chi_square, poisson
from sampling.selftest.tails import FAR, MANY, TailCase

CPU, ODDS = torch.device("cpu"), 1e-6
BEFORE, HASHED, SEEDED = SCHEMES


@pytest.mark.parametrize(("scheme", "bits"), [(BEFORE, 31), (HASHED, 33), (SEEDED, 32)])
def test_the_most_noise_is_that_of_the_smallest_uniform(scheme: Scheme, bits: int) -> None:
    assert most_noise(scheme) == pytest.approx(bits * math.log(2.0), rel=2.0**-22)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_noise_falls_with_the_rank_and_is_a_gumbel(scheme: Scheme) -> None:
    ranks = torch.arange(0, WORDS - 1, WORDS // 4096 + 1)
    noise = scheme.noise(ranks).double()
    assert bool((noise.diff() <= 0).all())
    # P(g > x) = 1 - exp(-exp(-x)), where the ranks up to this one lie.
    share = 1 - torch.exp(-torch.exp(-noise[1:]))
    assert torch.allclose(share, ranks[1:].double() / WORDS, rtol=1e-5, atol=2.0**-31)


def test_the_law_of_the_least_word_is_that_of_words_drawn() -> None:
    torch.manual_seed(3)
    n, tails, cells = 20_000, 1000, 12
    drawn, by_law = (least_ranks(n, tails, CPU, by_law=law) for law in (False, True))
    edges = -torch.expm1(torch.linspace(0, -3, cells).double() / tails) * WORDS
    share = torch.diff(
        torch.exp(-torch.linspace(0, 3, cells).double()), append=torch.zeros(1)
    ).neg()
    for ranks in (drawn, by_law):
        counts = torch.bincount(torch.bucketize(ranks.double(), edges, right=True) - 1)
        assert chi_square(counts, share, ODDS).p_value > ODDS


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("case", [MANY, FAR], ids=lambda case: case.name)
def test_tails_win_as_derived(scheme: Scheme, case: TailCase) -> None:
    _, gap, tails, draws = case
    torch.manual_seed(4)
    wins = count(scheme, gap, tails, draws, CPU, by_law=True)
    assert poisson(wins, expected_wins(scheme, gap, tails, draws), ODDS).p_value > ODDS


def test_only_a_gap_of_24_separates_hashes_of_32_bits_from_64() -> None:
    near = expected_wins(HASHED, *MANY[1:]), expected_wins(SEEDED, *MANY[1:])
    far = expected_wins(HASHED, *FAR[1:]), expected_wins(SEEDED, *FAR[1:])
    right = [case.probability * case.draws for case in (MANY, FAR)]
    assert near == pytest.approx((right[0], right[0]), rel=0.1)
    assert right[1] == pytest.approx(32.7, rel=0.01)
    assert far == pytest.approx((9.2, 0.8), abs=0.1)
