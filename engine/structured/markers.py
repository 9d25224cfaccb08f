"""Markers of several tokens, found among tokens as they come."""

from __future__ import annotations


class Marker:
    """Token ids that are looked for one token at a time.

    A place in the search is the number of the marker's first ids that come right before the next
    token, 0 to `len(ids)`.
    """

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids
        self._next: list[dict[int, int]] = [
            {token_id: self._longest((*ids[:place], token_id)) for token_id in {*ids}}
            for place in range(len(ids))
        ]

    def _longest(self, recent: tuple[int, ...]) -> int:
        """The length of the longest beginning of the marker that these ids end with."""
        return next(
            n for n in range(len(recent), -1, -1) if recent[len(recent) - n :] == self.ids[:n]
        )

    def advance(self, place: int, token_id: int) -> int:
        """The place after one more token, where the marker was not whole before."""
        return self._next[place].get(token_id, 0)
