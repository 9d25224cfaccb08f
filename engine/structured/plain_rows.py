"""The rows whose choices are held to nothing but a grammar that has begun: most, of most steps."""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher

from engine.arrays import Int64Array
from engine.rows import BoolArray

_NO_EPOCH = -1


class PlainRows:
    """Matchers by row, so that a step looks none of its choices up one by one.

    An entry holds for one epoch of its row: it ends with its choice's stay there.
    """

    def __init__(self, max_rows: int) -> None:
        self._matchers: dict[int, LLMatcher] = {}
        self._epochs: Int64Array = np.full(max_rows, _NO_EPOCH, dtype=np.int64)
        self._locks: Int64Array = np.zeros(max_rows, dtype=np.int64)

    def put(self, row: int, epoch: int, matcher: LLMatcher, lock: int) -> None:
        """Enter a row's matcher; `lock` as in `ChoiceMatcher`."""
        self._matchers[row] = matcher
        self._epochs[row] = epoch
        self._locks[row] = lock

    def drop(self, row: int) -> None:
        """Strike a row whose choice has no masks any more."""
        self._epochs[row] = _NO_EPOCH
        self._matchers.pop(row, None)

    def held(self, rows: Int64Array, epochs: Int64Array) -> BoolArray:
        """Which of these rows are entered, with these epochs."""
        held: BoolArray = self._epochs[rows] == epochs
        return held

    def order(self, rows: Int64Array) -> Int64Array:
        """Indices that put rows of one lock side by side, so that one thread does them."""
        return np.argsort(self._locks[rows], kind="stable")

    def matchers_of(self, rows: Int64Array) -> list[LLMatcher]:
        """The matchers of rows that are held."""
        return [self._matchers[row] for row in rows.tolist()]
