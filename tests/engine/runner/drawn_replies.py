"""Replies of engines with drafters, for tests of their distribution."""

from __future__ import annotations

import itertools

import pytest

from engine.contracts.runner import StepCosts
from engine.planning.draft_choice import DraftChoice
from engine.planning.drafting import DraftRules
from engine.runner.model_runner import ModelRunner
from engine.speculative_config import draft_counts

K, NUM_CHOICES, LENGTH = 3, 96, 24


def change_counts(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Let numbers of drafts change from step to step, for rows with seeds too; returns those used.

    None is among the numbers but for one that has a cache, whose rows would draft no more.
    """
    counts = itertools.cycle([*draft_counts(K), K, 1, 2])
    used: set[int] = set()

    def best(choice: DraftChoice, num_rows: int) -> int:
        used.add(count := next(counts))
        return count

    costs = StepCosts((1,), dict.fromkeys((0, *draft_counts(K)), (1.0,)))
    monkeypatch.setattr(ModelRunner, "step_costs", lambda runner: costs)
    monkeypatch.setattr(DraftChoice, "best", best)
    monkeypatch.setattr(DraftRules, "pins", lambda rules, request: False)
    return used
