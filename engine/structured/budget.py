"""How much of its budget of thoughts a choice has used, and what it must draw at its end."""

from __future__ import annotations

from typing import NamedTuple

from engine.messages.request import ThinkingBudget
from engine.structured.markers import Marker


class Thinking(NamedTuple):
    """Where a choice is in its thoughts.

    Attributes:
        is_open: the next token is one of them, or of the marker that closes them.
        matched: ids of the marker that is looked for, right before the next token.
        num_thoughts: tokens so far, those that may turn out to be the marker's included.
    """

    is_open: bool
    matched: int
    num_thoughts: int


class BudgetCount:
    """Counts the thoughts of a choice against their budget, which depends on the tokens alone.

    Attributes:
        first: the place before the first token.
    """

    def __init__(self, budget: ThinkingBudget) -> None:
        self._limit = budget.num_tokens
        self._begin, self._end = Marker(budget.begin), Marker(budget.end)
        self.first = Thinking(budget.are_open, 0, 0)

    def advance(self, place: Thinking, token_id: int) -> Thinking:
        """The place after one more token."""
        is_open, matched, num_thoughts = place
        if not is_open:
            matched = self._begin.advance(matched, token_id)
            is_whole = matched == len(self._begin.ids)
            return (
                Thinking(True, 0, num_thoughts)
                if is_whole
                else Thinking(False, matched, num_thoughts)
            )
        matched = self._end.advance(matched, token_id)
        if matched == len(self._end.ids):
            return Thinking(False, 0, num_thoughts + 1 - matched)
        return Thinking(True, matched, num_thoughts + 1)

    def forced(self, place: Thinking) -> int | None:
        """The only token that may come next; None within the budget."""
        if not place.is_open or place.num_thoughts < self._limit:
            return None
        return self._end.ids[place.matched]
