"""Logprobs leave the queue in order, whatever the sizes in which they came."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.generation.logprob_queue import LogprobQueue
from tests.server.generation.pieces import values


def test_an_empty_queue_has_nothing() -> None:
    queue = LogprobQueue()
    assert queue.take(1) is None
    queue.push(values(1))
    queue.take(1)
    assert queue.take(0) is None


def test_what_is_wider_or_longer_than_wanted_is_cut_and_may_differ_in_width() -> None:
    queue = LogprobQueue(2, 1)
    queue.push(values(5, num_top=4, num_explicit=3), 1, 3)
    queue.push(values(4, num_top=2, num_explicit=1), 3, 4)
    taken = queue.take(3)
    assert taken is not None
    assert taken.ranks.tolist() == [1, 2, 3]
    assert taken.top_ids.tolist() == [[1, 2], [2, 3], [3, 4]]
    assert taken.top_logprobs.shape == (3, 2)
    assert taken.explicit[:, 0].tolist() == taken.chosen.tolist() == [-1, -2, -3]
    assert taken.explicit.shape == (3, 1)
    assert queue.take(1) is None


def test_a_part_that_is_taken_alone_is_no_copy() -> None:
    queue, first = LogprobQueue(), values(1)
    queue.push(first)
    queue.push(values(1, first=1))
    taken = queue.take(1)
    assert taken is not None
    assert np.shares_memory(taken.chosen, first.chosen)


def test_a_position_is_taken_as_its_place_or_as_arrays() -> None:
    queues = LogprobQueue(2, 1), LogprobQueue(2, 1)
    for queue in queues:
        assert queue.take_lone() is None
        queue.push(values(5, num_top=4, num_explicit=3), 1, 3)
        queue.push(values(4, num_top=2, num_explicit=1), 3, 4)
    for i in (1, 2, 3):
        place, arrays = queues[0].take_lone(), queues[1].take(1)
        assert place is not None
        assert arrays is not None
        assert place.i == i
        alone = place.alone()
        for name in alone.__struct_fields__:
            np.testing.assert_array_equal(getattr(alone, name), getattr(arrays, name))
    assert queues[0].take_lone() is None


def test_fewer_than_asked_are_all() -> None:
    queue = LogprobQueue()
    queue.push(values(2))
    taken = queue.take(5)
    assert taken is not None
    assert taken.ranks.tolist() == [0, 1]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.lists(st.integers(0, 4)))
def test_in_order(pushed: list[int], takes: list[int]) -> None:
    queue, total = LogprobQueue(), 0
    for count in pushed:
        queue.push(values(count, num_top=2, num_explicit=1, first=total))
        total += count
    out: list[int] = []
    for count in [*takes, total]:
        taken = queue.take(count)
        if taken is None:
            break
        at = taken.ranks.tolist()
        assert len(at) == min(count, total - len(out))
        assert taken.chosen.tolist() == taken.explicit[:, 0].tolist() == [-i for i in at]
        assert taken.top_ids.tolist() == [[i, i + 1] for i in at]
        assert taken.top_logprobs.tolist() == [[-i, -i] for i in at]
        out += at
    assert out == list(range(total))
