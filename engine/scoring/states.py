"""The snapshots that a scoring request's rows begin from and leave, where layers keep states.

Its items begin from the state after its query, so no step computes both.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.memory.snapshots import SnapshotPool

SNAPSHOTS_EACH = 2
"""That a request reserves."""


@dataclass
class ScoringStates:
    """The snapshots of one request.

    Attributes:
        restored: the one that its query begins from, held; or none.
        of_query: after the shared tokens that are scheduled; `restored` until there are others.
        query, split: reserved, for the query and for the row that is split over steps.
    """

    restored: int
    of_query: int
    query: int
    split: int

    @classmethod
    def reserve(cls, pool: SnapshotPool, restored: int) -> ScoringStates | None:
        """Reserve what the rows leave, and hold what they begin from; None where none is left."""
        pool.hold(restored)
        reserved = [pool.reserve() for _ in range(SNAPSHOTS_EACH)]
        query, split = reserved
        if query is not None and split is not None:
            return cls(restored, restored, query, split)
        pool.drop(restored)
        if query is not None:
            pool.release(query)
        return None

    def release(self, pool: SnapshotPool, query_hash: bytes | None) -> None:
        """Give up everything.

        Args:
            query_hash: lets the state after the query be found; None where it must not be.
        """
        pool.drop(self.restored)
        pool.release(self.split)
        if query_hash is not None and self.of_query == self.query:
            pool.register(self.query, query_hash)
        else:
            pool.release(self.query)
