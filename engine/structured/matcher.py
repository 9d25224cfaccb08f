"""How far one choice is in its grammar."""

from __future__ import annotations

from llguidance import LLMatcher

from engine.request import Grammar


class ChoiceMatcher:
    """A choice's place in its grammar, which begins at its first token or behind certain ones.

    Args:
        compiled: a matcher at the beginning of the grammar, which is copied.

    Attributes:
        matcher: has consumed the choice's tokens that were read back, as far as they belong to the
            grammar, and no others.
    """

    def __init__(self, grammar: Grammar, compiled: LLMatcher) -> None:
        self.matcher = compiled.deep_copy()
        self._after = list(grammar.after)
        self._begun = not grammar.after
        self._recent: list[int] = []  # as many of the last tokens as may begin `after`

    def start_in(self, token_ids: list[int]) -> int | None:
        """The index among the choice's next tokens at which its grammar begins.

        0 where it has begun before, `len(token_ids)` where it begins right behind them, None where
        it does not begin by then.
        """
        if self._begun:
            return 0
        joined, width = self._recent + token_ids, len(self._after)
        for end in range(width, len(joined) + 1):
            if joined[end - width : end] == self._after:
                return end - len(self._recent)
        return None

    def enter(self, token_ids: list[int]) -> list[int]:
        """Note the choice's next tokens; returns those that the matcher is to consume."""
        start = self.start_in(token_ids)
        if start is None:
            recent = self._recent + token_ids
            self._recent = recent[max(len(recent) - len(self._after) + 1, 0) :]
            return []
        self._begun = True
        return token_ids[start:]


def error_of(matcher: LLMatcher) -> str:
    """The first line of a matcher's error, which names what it could not do."""
    lines = matcher.get_error().strip().splitlines()
    return lines[0] if lines else "llguidance does not say why"
