"""`RankedLine`: what waits in order of rank, and may leave from any place. No torch."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Waiting = TypeVar("Waiting", bound=Hashable)


@dataclass(eq=False, slots=True)
class _Place(Generic[Waiting]):
    """A place in the heap; whoever was there is let go of at once, the place later."""

    item: Waiting | None


class RankedLine(Generic[Waiting]):
    """Items by rank, the lowest first; no two have the same.

    Leaving costs as much as joining, but for the places left behind, which are swept out once they
    are more than half of all: as many as have left since the last time.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, ...], _Place[Waiting]]] = []
        self._places: dict[Waiting, _Place[Waiting]] = {}

    def __len__(self) -> int:
        return len(self._places)

    @property
    def first(self) -> Waiting | None:
        """The item of the lowest rank; None where there is none."""
        return self._heap[0][1].item if self._heap else None

    def push(self, item: Waiting, rank: tuple[int, ...]) -> None:
        """Let an item wait."""
        place = self._places[item] = _Place(item)
        heapq.heappush(self._heap, (rank, place))

    def discard(self, item: Waiting) -> None:
        """Let an item wait no longer; one that does not wait is left alone."""
        place = self._places.pop(item, None)
        if place is None:
            return
        place.item = None
        if len(self._heap) > 2 * len(self._places):
            self._heap = [each for each in self._heap if each[1].item is not None]
            heapq.heapify(self._heap)
        while self._heap and self._heap[0][1].item is None:
            heapq.heappop(self._heap)

    def clear(self) -> None:
        """Let nothing wait."""
        self._heap.clear()
        self._places.clear()
