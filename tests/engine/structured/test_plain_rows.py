"""Matchers by row: each for one stay of a choice, those of one lock side by side."""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher

from engine.structured.plain_rows import PlainRows
from tests.engine.structured.constrained import ll_tokenizer, of_regex

ROWS = np.array([3, 0, 2, 1], dtype=np.int64)
EPOCHS = np.array([5, 0, 1, 7], dtype=np.int64)


def entered(locks: list[int]) -> tuple[PlainRows, list[LLMatcher]]:
    """Rows `ROWS`, entered with `EPOCHS` and these locks, and their matchers."""
    tokenizer, plain = ll_tokenizer(), PlainRows(4)
    matchers = [LLMatcher(tokenizer, of_regex("a*"), log_level=0) for _ in ROWS]
    rows = zip(ROWS.tolist(), EPOCHS.tolist(), matchers, locks, strict=True)
    for row, epoch, matcher, lock in rows:
        plain.put(row, epoch, matcher, lock)
    return plain, matchers


def test_a_row_is_held_for_one_stay_of_its_choice() -> None:
    plain, _ = entered([0, 0, 0, 0])
    assert plain.held(ROWS, EPOCHS).all()
    later = EPOCHS + np.array([0, 1, 0, 1])
    assert plain.held(ROWS, later).tolist() == [True, False, True, False]
    plain.drop(3)
    plain.drop(3)
    assert plain.held(ROWS, EPOCHS).tolist() == [False, True, True, True]


def test_none_is_held_before_it_is_entered() -> None:
    assert not PlainRows(4).held(ROWS, np.zeros(4, dtype=np.int64)).any()


def test_rows_of_one_lock_stand_side_by_side() -> None:
    plain, matchers = entered([2, 1, 2, 1])
    order = plain.order(ROWS)
    assert order.tolist() == [1, 3, 0, 2]
    assert plain.matchers_of(ROWS[order]) == [matchers[i] for i in order.tolist()]
    assert plain.matchers_of(ROWS[:0]) == []
