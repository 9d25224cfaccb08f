"""Where among a choice's tokens its grammar begins."""

from __future__ import annotations

import enum
from typing import NamedTuple

from engine.messages.request import Grammar
from engine.structured.markers import Marker


class Phase(enum.Enum):
    """What the next token belongs to."""

    OPENING = enum.auto()
    """The marker of `Grammar.unless_opened`, or the grammar, which begins with the first token."""
    BEFORE = enum.auto()
    """What comes before the end of `Grammar.after`."""
    GRAMMAR = enum.auto()


class GrammarPlace(NamedTuple):
    """Where a choice is: in which phase, and how much of its marker is right after it."""

    phase: Phase
    matched: int


class Beginning:
    """Finds where a grammar begins, which depends on the tokens alone.

    Attributes:
        first: the place before the first token.
        opening: token ids that a choice may open with; see `Grammar.unless_opened`.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.opening = grammar.unless_opened
        self._after = Marker(grammar.after)
        phase = Phase.GRAMMAR
        if grammar.after:
            phase = Phase.OPENING if self.opening else Phase.BEFORE
        self.first = GrammarPlace(phase, 0)

    def advance(self, place: GrammarPlace, token_id: int) -> GrammarPlace:
        """The place after one more token."""
        phase, matched = place
        if phase is Phase.OPENING:
            if token_id != self.opening[matched]:
                return GrammarPlace(Phase.GRAMMAR, 0)
            is_whole = matched + 1 == len(self.opening)
            return GrammarPlace(Phase.BEFORE, 0) if is_whole else GrammarPlace(phase, matched + 1)
        if phase is Phase.BEFORE:
            matched = self._after.advance(matched, token_id)
            is_whole = matched == len(self._after.ids)
            return GrammarPlace(Phase.GRAMMAR, 0) if is_whole else GrammarPlace(phase, matched)
        return place
