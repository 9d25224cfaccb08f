"""Snapshots are found by hashes, evicted in turn, and never lost."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from engine.memory.snapshots import NO_SNAPSHOT, SnapshotPool
from engine.stats import SnapshotStats

A, B, C, D = b"a", b"b", b"c", b"d"


def filled(*hashes: bytes, num_snapshots: int | None = None) -> SnapshotPool:
    """A pool whose snapshots were registered in this order."""
    pool = SnapshotPool(len(hashes) if num_snapshots is None else num_snapshots)
    for block_hash in hashes:
        snapshot = pool.reserve()
        assert snapshot is not None
        pool.register(snapshot, block_hash)
    return pool


def test_the_deepest_snapshot_of_a_chain_is_found() -> None:
    pool = filled(A, C)
    assert pool.find([A, B, C, D]) == (3, 2)
    assert pool.find([A, B]) == (1, 1)
    assert pool.find([B, D]) == (0, NO_SNAPSHOT)
    assert pool.find([]) == (0, NO_SNAPSHOT)


def test_a_reserved_snapshot_is_not_found_until_it_is_registered() -> None:
    pool = filled(A, num_snapshots=2)
    snapshot = pool.reserve()
    assert snapshot == 2
    assert pool.reserve() is not None  # the first one, which nobody has reserved
    assert pool.find([A]) == (0, NO_SNAPSHOT)
    assert pool.reserve() is None
    pool.register(snapshot, B)
    assert pool.find([A, B]) == (2, 2)


def test_the_one_found_longest_ago_makes_room() -> None:
    pool = filled(A, B, C)
    pool.find([A])
    pool.planned()
    assert pool.reserve() == 2
    assert pool.reserve() == 3
    assert pool.find([A, B, C]) == (1, 1)


def test_what_a_step_restores_is_not_written_by_it() -> None:
    pool = filled(A, B)
    pool.restore(1)
    assert pool.reserve() == 2
    assert pool.reserve() is None
    pool.planned()
    assert pool.reserve() is None, "a step of scoring, planned now, would run before"
    pool.planned()
    assert pool.reserve() == 1


def test_what_is_held_is_not_evicted() -> None:
    pool = filled(A, B)
    pool.hold(1)
    pool.hold(1)
    assert pool.reserve() == 2
    pool.drop(1)
    assert pool.reserve() is None
    pool.drop(1)
    assert pool.reserve() == 1


def test_of_two_with_equal_hashes_the_first_stays() -> None:
    pool = filled(A, num_snapshots=2)
    second = pool.reserve()
    assert second == 2
    pool.register(second, A)
    assert pool.find([A]) == (1, 1)
    assert pool.reserve() == 2


def test_what_was_made_found_and_evicted_is_counted() -> None:
    pool = SnapshotPool(2, bytes_each=100)
    assert pool.reserve_up_to(3) == [1, 2]
    pool.register(1, A)
    pool.register(2, A)  # there is one already
    pool.restore(1)
    pool.count_hit(NO_SNAPSHOT)
    made = SnapshotStats(
        num_total=2, num_kept=1, total_bytes=200, kept_bytes=100, num_made=1, num_hits=1
    )
    assert pool.stats() == made
    for _ in range(2):
        pool.planned()
    assert pool.reserve_up_to(2) == [2, 1]
    assert pool.stats() == structs.replace(made, num_kept=0, kept_bytes=0, num_evicted=1)


@pytest.mark.parametrize("seed", range(5))
def test_random_use_loses_none(seed: int) -> None:
    rng, pool, reserved = random.Random(seed), SnapshotPool(6), list[int]()
    for _ in range(400):
        action = rng.randrange(4)
        if action == 0 and (snapshot := pool.reserve()) is not None:
            reserved.append(snapshot)
        elif action == 1 and reserved:
            pool.register(reserved.pop(rng.randrange(len(reserved))), bytes([rng.randrange(9)]))
        elif action == 2 and reserved:
            pool.release(reserved.pop())
        elif action == 3:
            count, snapshot = pool.find([bytes([rng.randrange(9)]) for _ in range(3)])
            assert (count == 0) == (snapshot == NO_SNAPSHOT)
            assert snapshot not in reserved
            pool.planned()
        pool.check(reserved)
    assert pool.num_findable
    with pytest.raises(AssertionError, match="lost or used twice"):
        pool.check([*reserved, 1])
