"""Scoring requests that wait for blocks, in their order. No torch."""

from __future__ import annotations

import heapq

from engine.scoring.progress import ScoringProgress


class ScoringLine:
    """Requests by priority, where it counts, and by arrival; some may be parked apart.

    Those that end meanwhile stay in the line until it is their turn.
    """

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[tuple[int, int], ScoringProgress]] = []
        self._parked: list[ScoringProgress] | None = None

    @property
    def first(self) -> ScoringProgress | None:
        """The request whose turn it is."""
        return self._heap[0][1] if self._heap else None

    @property
    def num_parked(self) -> int:
        """Parked requests that have not ended."""
        return sum(not progress.ended for progress in self._parked or ())

    def push(self, progress: ScoringProgress) -> None:
        """Let a request wait for blocks, or park it."""
        if self._parked is not None:
            self._parked.append(progress)
            return
        priority = progress.request.priority if self._by_priority else 0
        heapq.heappush(self._heap, ((priority, progress.arrival), progress))

    def pop(self) -> None:
        """Let the first request wait no longer."""
        heapq.heappop(self._heap)

    def park(self) -> None:
        """Let requests that come from now on wait for `unpark`."""
        self._parked = self._parked or []

    def unpark(self) -> None:
        """Let the parked requests wait for blocks."""
        parked, self._parked = self._parked or [], None
        for progress in parked:
            self.push(progress)

    def clear(self) -> None:
        """Let no request wait; those that come are still parked where they were."""
        self._heap.clear()
        self._parked = None if self._parked is None else []
