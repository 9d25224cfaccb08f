"""Scoring requests that wait for blocks, in their order. No torch."""

from __future__ import annotations

from engine.ranked import RankedLine
from engine.scoring.progress import ScoringProgress


class ScoringLine:
    """Requests by priority, where it counts, and by arrival; some may be parked apart."""

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._line = RankedLine[ScoringProgress]()
        self._parked: dict[ScoringProgress, None] | None = None

    @property
    def first(self) -> ScoringProgress | None:
        """The request whose turn it is."""
        return self._line.first

    @property
    def num_parked(self) -> int:
        """Requests that are parked."""
        return len(self._parked or ())

    def push(self, progress: ScoringProgress) -> None:
        """Let a request wait for blocks, or park it."""
        if self._parked is not None:
            self._parked[progress] = None
            return
        priority = progress.request.priority if self._by_priority else 0
        self._line.push(progress, (priority, progress.arrival))

    def discard(self, progress: ScoringProgress) -> None:
        """Let a request wait no longer, whether it did, was parked or neither."""
        self._line.discard(progress)
        if self._parked is not None:
            self._parked.pop(progress, None)

    def park(self) -> None:
        """Let requests that come from now on wait for `unpark`."""
        self._parked = self._parked or {}

    def unpark(self) -> None:
        """Let the parked requests wait for blocks."""
        parked, self._parked = self._parked or {}, None
        for progress in parked:
            self.push(progress)

    def clear(self) -> None:
        """Let no request wait; those that come are still parked where they were."""
        self._line.clear()
        self._parked = None if self._parked is None else {}
