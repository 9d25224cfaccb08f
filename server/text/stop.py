"""Stop strings: the first to be completed wins, and text that may begin one is held back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """Where a stop string lies in a text, and which."""

    start: int
    end: int
    stop: str


class StopMatcher:
    """Finds stop strings in a text as it grows.

    Which one is found depends on the text alone, not on how it was cut into tokens or chunks:
    the one whose end comes first, of those that end together the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = list(dict.fromkeys(stops))

    def find(self, text: str, known: int) -> Match | None:
        """The first match that ends after the first `known` characters."""
        best: Match | None = None
        for stop in self._stops:
            start = text.find(stop, max(known - len(stop) + 1, 0))
            if start < 0:
                continue
            match = Match(start, start + len(stop), stop)
            if best is None or (match.end, match.start) < (best.end, best.start):
                best = match
        return best

    def held(self, text: str) -> int:
        """Length of the longest end of `text` that is the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            start = max(len(text) - len(stop) + 1, 0)
            while len(text) - start > longest:
                start = text.find(stop[0], start)
                if start < 0:
                    break
                if stop.startswith(text[start:]):
                    longest = max(longest, len(text) - start)
                    break
                start += 1
        return longest
