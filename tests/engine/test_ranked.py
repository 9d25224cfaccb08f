"""Lines in order of rank, and what is let go of when items leave them."""

from __future__ import annotations

import random
import weakref

import pytest

from engine.ranked import RankedLine


class Item:
    """Anything that waits."""


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_joining_and_leaving(seed: int) -> None:
    rng, line, wanted = random.Random(seed), RankedLine[Item](), dict[Item, tuple[int, ...]]()
    ranks = [(rng.randrange(3), number) for number in range(400)]
    for rank in ranks:
        item = Item()
        line.push(item, rank)
        wanted[item] = rank
        for _ in range(rng.choice([0, 0, 1, 3])):
            if wanted:
                gone = rng.choice([min(wanted, key=wanted.__getitem__), rng.choice([*wanted])])
                line.discard(gone)
                line.discard(gone)
                del wanted[gone]
            assert line.first is (min(wanted, key=wanted.__getitem__) if wanted else None)
            assert len(line) == len(wanted)
            assert len(line._heap) <= 2 * len(line) + 1
    line.clear()
    assert (line.first, len(line)) == (None, 0)


def test_what_leaves_is_let_go_of_at_once() -> None:
    line, items = RankedLine[Item](), [Item() for _ in range(9)]
    for number, item in enumerate(items):
        line.push(item, (number,))
    last = weakref.ref(items[-1])
    line.discard(items.pop())
    del item
    assert last() is None


def test_leaving_is_as_cheap_as_joining() -> None:
    """Places are compared a few times each, however many leave behind a first one that stays."""
    compared = 0

    class Rank(tuple[int, ...]):
        def __lt__(self, other: tuple[int, ...]) -> bool:
            nonlocal compared
            compared += 1
            return super().__lt__(other)

    line, items = RankedLine[Item](), [Item() for _ in range(10_000)]
    for number, item in enumerate(items):
        line.push(item, Rank((number,)))
    for item in reversed(items[1:]):
        line.discard(item)
    assert (line.first, len(line)) == (items[0], 1)
    assert compared < 10 * len(items)
