"""The snapshots that a scoring request's rows begin from and leave, where layers keep states.

Its items begin from the state after its query, and an item's branches from the state after their
stem. Rows of one step may do both: what a row leaves is there for the parts of the step after its
own.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.memory.snapshots import NO_SNAPSHOT, SnapshotPool
from engine.scoring.layout import RowLayout

STEM_SHARE = 8
"""A step may take one in so many snapshots for stems, since these make others no longer found."""


def num_reserved(layout: RowLayout) -> int:
    """The snapshots that a request reserves: for its query, a split row and, if any, a stem."""
    return 3 if layout.stems.any() else 2


@dataclass
class ScoringStates:
    """The snapshots of one request.

    Attributes:
        restored: the one that its query begins from, held; or none.
        of_query: after the shared tokens that are scheduled; `restored` until there are others.
        query, split, stem: reserved, for the query, for the row that is split over steps and for
            the stem of an item whose rows may be in several; there may be no `stem`.
    """

    restored: int
    of_query: int
    query: int
    split: int
    stem: int

    @classmethod
    def reserve(cls, pool: SnapshotPool, restored: int, count: int) -> ScoringStates | None:
        """Reserve `count` snapshots, and hold the one that the query begins from.

        Returns:
            None where there are too few.
        """
        pool.hold(restored)
        reserved = pool.reserve_up_to(count)
        if len(reserved) == count:
            pool.count_hit(restored)
            query, split, *stem = reserved
            return cls(restored, restored, query, split, stem[0] if stem else NO_SNAPSHOT)
        pool.drop(restored)
        for snapshot in reserved:
            pool.release(snapshot)
        return None

    @property
    def reserved(self) -> list[int]:
        """All that is reserved."""
        return [self.query, self.split, *self.stems]

    @property
    def stems(self) -> list[int]:
        """The snapshot for a stem, if there is one."""
        return [] if self.stem == NO_SNAPSHOT else [self.stem]

    def release(self, pool: SnapshotPool, query_hash: bytes | None) -> None:
        """Give up everything.

        Args:
            query_hash: lets the state after the query be found; None where it must not be.
        """
        pool.drop(self.restored)
        _, *others = self.reserved
        for snapshot in others:
            pool.release(snapshot)
        if query_hash is not None and self.of_query == self.query:
            pool.register(self.query, query_hash)
        else:
            pool.release(self.query)
