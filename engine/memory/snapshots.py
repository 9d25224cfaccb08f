"""Snapshots of rows' states: which are in use, and the prefixes they are found by. No torch.

A snapshot is the state of a row at the end of a full block, and has that block's hash. It is
*reserved* until a step that made it was read back, and findable from then on, until it is the one
found longest ago and another needs its place.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from engine.stats import SnapshotStats

MAX_SNAPSHOTS = 2
"""That a row may have on their way: where its prompt leaves what is known, and near its end."""
NO_SNAPSHOT = 0
"""The snapshot that is never reserved: a row that restores it begins at its first token."""


class SnapshotPool:
    """Reserves snapshots 1 .. num_snapshots, and finds those that were registered.

    Args:
        bytes_each: of memory.
    """

    def __init__(self, num_snapshots: int, bytes_each: int = 0) -> None:
        self.num_snapshots = num_snapshots
        self._bytes_each = bytes_each
        self._num_made = self._num_hits = self._num_evicted = 0
        self._free = list(range(num_snapshots, 0, -1))
        self._by_hash: OrderedDict[bytes, int] = OrderedDict()  # found longest ago first
        self._restored: set[int] = set()  # by the step that is being planned
        self._restored_last: set[int] = set()
        self._num_readers: Counter[int] = Counter()

    @property
    def num_findable(self) -> int:
        """The number of snapshots that `find` can return."""
        return len(self._by_hash)

    def find(self, hashes: Sequence[bytes]) -> tuple[int, int]:
        """The deepest snapshot of a hash chain, and how many of its blocks it covers.

        Returns:
            The number of blocks and the snapshot; 0 and `NO_SNAPSHOT` where there is none.
        """
        for count in range(len(hashes), 0, -1):
            snapshot = self._by_hash.get(hashes[count - 1])
            if snapshot is not None:
                self._by_hash.move_to_end(hashes[count - 1])
                return count, snapshot
        return 0, NO_SNAPSHOT

    def hold(self, snapshot: int) -> None:
        """Keep a snapshot that was found from being evicted, until it is dropped as often."""
        self._num_readers[snapshot] += 1

    def drop(self, snapshot: int) -> None:
        """Let go of a snapshot that was held."""
        self._num_readers[snapshot] -= 1
        self._num_readers += Counter()  # without those that nobody holds

    def restore(self, snapshot: int) -> None:
        """Keep a snapshot that the step being planned reads, until the plan after it."""
        self._restored.add(snapshot)
        self.count_hit(snapshot)

    def count_hit(self, snapshot: int) -> None:
        """Note what a choice or scoring request begins from, which may be `NO_SNAPSHOT`."""
        self._num_hits += snapshot != NO_SNAPSHOT

    def planned(self) -> None:
        """Note the end of a plan. Steps planned after the next one run after its own.

        Not those before: a step of scoring may be planned after a step of choices, and run first.
        """
        self._restored_last, self._restored = self._restored, set()

    def reserve(self) -> int | None:
        """Take a free snapshot, or the findable one found longest ago; None if there is none."""
        if self._free:
            return self._free.pop()
        kept = self._restored | self._restored_last | self._num_readers.keys()
        for block_hash, snapshot in self._by_hash.items():
            if snapshot not in kept:
                self._num_evicted += 1
                return self._by_hash.pop(block_hash)
        return None

    def reserve_up_to(self, count: int) -> list[int]:
        """Reserve `count` snapshots, or as many as there are."""
        reserved: list[int] = []
        while len(reserved) < count and (snapshot := self.reserve()) is not None:
            reserved.append(snapshot)
        return reserved

    def register(self, snapshot: int, block_hash: bytes) -> None:
        """Let a reserved snapshot be found; of two with equal hashes the first one stays."""
        if block_hash in self._by_hash:
            self._by_hash.move_to_end(block_hash)
            self._free.append(snapshot)
        else:
            self._by_hash[block_hash] = snapshot
            self._num_made += 1

    def release(self, snapshot: int) -> None:
        """Give up a reserved snapshot."""
        self._free.append(snapshot)

    def forget_all(self) -> None:
        """Let no snapshot be found any more. No step is planned that reads one."""
        self._free += self._by_hash.values()
        self._by_hash.clear()

    def stats(self) -> SnapshotStats:
        """Gauges of now and counters since the start."""
        return SnapshotStats(
            num_total=self.num_snapshots,
            num_kept=self.num_findable,
            total_bytes=self.num_snapshots * self._bytes_each,
            kept_bytes=self.num_findable * self._bytes_each,
            num_made=self._num_made,
            num_hits=self._num_hits,
            num_evicted=self._num_evicted,
        )

    def check(self, reserved: Iterable[int]) -> None:
        """Assert that each snapshot is free, reserved or findable; for tests and idle moments."""
        known = sorted([*self._free, *self._by_hash.values(), *reserved])
        assert known == list(range(1, self.num_snapshots + 1)), "a snapshot is lost or used twice"
