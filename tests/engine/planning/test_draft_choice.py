"""Whether drafting pays, by what was accepted and what steps cost."""

from __future__ import annotations

import numpy as np
import pytest

from engine.contracts.runner import StepCosts
from engine.planning.draft_choice import LEAST_VERIFIED, PROBE_STEPS, WINDOW, DraftChoice

COSTS = StepCosts((1, 8, 64), (1.0, 1.1, 2.0), (1.1, 1.65, 6.0))
"""Drafting takes 1.1, 1.5 and 3 times as long."""


def learned(num_rows: int, length: float, steps: int = 1000, seed: int = 0) -> DraftChoice:
    """A choice that saw steps in which a row got so many tokens on average, of up to 5."""
    choice, rng = DraftChoice(COSTS), np.random.default_rng(seed)
    for _ in range(steps):
        accepted = int(rng.binomial(4 * num_rows, (length - 1.0) / 4))
        choice.learn(num_rows, num_rows, accepted)
    return choice


def test_ratios_are_those_of_the_size_that_a_batch_is_padded_to() -> None:
    ratios = [COSTS.ratio(n) for n in (1, 2, 8, 9, 64, 200)]
    assert ratios == pytest.approx([1.1, 1.5, 1.5, 3.0, 3.0, 3.0])


@pytest.mark.parametrize(
    ("length", "pays"),
    [
        (1.0, (False, False, False)),
        (1.3, (True, False, False)),
        (2.0, (True, True, False)),
        (4.0, (True, True, True)),
    ],
)
def test_drafting_pays_where_rows_get_more_tokens_than_it_takes_longer(
    length: float, pays: tuple[bool, ...]
) -> None:
    choice = learned(8, length)
    assert tuple(choice.pays(n) for n in COSTS.sizes) == pays


def test_nothing_is_chosen_before_drafts_were_seen() -> None:
    choice = DraftChoice(COSTS)
    choice.learn(1, LEAST_VERIFIED - 1, 0)
    assert choice.pays(64)
    choice.learn(1, 2, 0)  # what was seen before counts for a little less
    assert not choice.pays(1)


def test_what_is_accepted_now_counts() -> None:
    """Acceptance falls to nothing: after a window, no drafts; a later probe finds that it rose."""
    choice = learned(8, 5.0)
    steps = 0
    while choice.pays(8):
        choice.learn(8, 8, 0)
        steps += 1
    assert steps < 3 * WINDOW / 8
    for _ in range(PROBE_STEPS - 1):
        choice.learn(8, 0, 0)
        assert not choice.pays(8)
    choice.learn(8, 0, 0)
    for _ in range(100):
        assert choice.pays(8)
        choice.learn(8, 8, 32)


def test_a_probe_costs_less_than_a_hundredth() -> None:
    """Of a lone row, whose probe is the longest, where drafts double the time and none stands."""
    choice = DraftChoice(StepCosts((1,), (1.0,), (2.0,)))
    seconds = 0.0
    for _ in range(num_steps := 10 * PROBE_STEPS):
        drafts = choice.pays(1)
        seconds += 2.0 if drafts else 1.0
        choice.learn(1, int(drafts), 0)
    assert num_steps / seconds > 0.99


def test_a_manner_that_is_hardly_better_is_not_taken() -> None:
    choice = DraftChoice(COSTS)
    for tokens in (24, 25, 24, 23) * 50:  # 1.5 tokens a row or so, where drafting takes 1.5 times
        choice.learn(16 // 2, 48, tokens)
        assert choice.pays(8)
