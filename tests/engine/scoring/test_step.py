"""Steps of a scoring queue alone: who is in them, with how many tokens and blocks."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from msgspec import structs

from engine.config import CacheConfig, SchedulerConfig
from engine.memory.blocks import BlockPool, block_hashes, versioned_salt
from engine.messages.request import ScoringRequest
from engine.scoring.queue import ScoringQueue
from tests.engine.scoring.scoring_fake import ScoringFake, scoring
from tests.engine.traffic import FRONTEND


class Setup:
    """A queue of its own over a pool of blocks of 4 tokens."""

    def __init__(
        self, *, num_blocks: int, budget: int = 16, policy: Literal["fcfs", "priority"] = "fcfs"
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.runner = ScoringFake(4, 65, num_blocks, 4)
        self.promised = 0
        self.ended: list[int] = []
        self.queue = ScoringQueue(
            SchedulerConfig(max_rows=4, max_step_tokens=budget, policy=policy),
            CacheConfig(block_size=4),
            self.pool,
            self.runner,
            num_promised=lambda: self.promised,
            report=lambda frontend, scores: self.ended.append(scores.handle),
        )
        self._num_arrivals = 0

    def submit(self, asked: ScoringRequest) -> None:
        self._num_arrivals += 1
        self.queue.submit(FRONTEND, asked, self._num_arrivals)

    def turn(self) -> list[int]:
        """Launch a step and read back the one before; returns the tokens of each row launched."""
        before = len(self.runner.plans)
        self.queue.launch()
        self.pool.check(self.queue.holdings.held_blocks)
        self.queue.read_back()
        plans = self.runner.plans[before:]
        return [int(count) for plan in plans for count in np.diff(plan.query_starts)]

    def known_query(self, length: int) -> list[int]:
        """A query whose full blocks are computed, and held by nobody."""
        query = list(range(1, length + 1))
        self.submit(scoring(99, query, [[7]]))
        while self.queue.has_work:
            self.turn()
        self.ended.clear()
        return query


def test_known_blocks_that_nobody_holds_need_room_too() -> None:
    setup = Setup(num_blocks=5)  # four blocks
    query = setup.known_query(8)
    setup.submit(scoring(1, query, [list(range(9))]))  # two known blocks, and three for the item
    assert setup.turn() == []
    assert setup.queue.num_waiting == 1
    setup.submit(scoring(2, query[:4], [list(range(9))]))
    assert setup.queue.num_active == 0, "one after the other"
    setup.queue.abort(FRONTEND, 1)
    assert setup.turn() == [9]
    assert setup.queue.holdings.prefix_hits == 4


def test_promised_blocks_are_left_to_choices() -> None:
    """For admission, and for items beyond the first, which has a block of its own."""
    setup = Setup(num_blocks=6)  # five blocks
    setup.submit(scoring(1, [], [[1, 2, 3]] * 9))
    setup.promised = 5
    assert setup.turn() == []
    setup.promised = 3
    assert setup.turn() == [3, 3], "one block is held, one is free and not promised"
    setup.promised = 9
    assert setup.turn() == [3]
    setup.promised = 0
    assert setup.turn() == [3] * 5


def test_requests_take_turns() -> None:
    """Each step holds four items of four tokens, and nothing else."""
    setup = Setup(num_blocks=40)
    for handle in (1, 2):
        setup.submit(scoring(handle, [], [[handle, 5, 6, 7]] * 8))
    firsts = []
    for _ in range(4):
        assert setup.turn() == [4] * 4
        firsts.append(setup.runner.plans[-1].token_ids[::4].tolist())
    assert firsts == [[1] * 4, [2] * 4, [1] * 4, [2] * 4]


@pytest.mark.parametrize(("policy", "order"), [("fcfs", [1, 2, 3]), ("priority", [2, 3, 1])])
def test_priority_is_heeded_where_it_is_the_policy(
    policy: Literal["fcfs", "priority"], order: list[int]
) -> None:
    """Among waiting requests, of which one can be active, and among active ones."""
    for num_blocks in (2, 40):
        setup = Setup(num_blocks=num_blocks, budget=4, policy=policy)
        for handle, priority in [(1, 5), (2, -1), (3, 0)]:
            asked = scoring(handle, [], [[handle, 5, 6, 7]])
            setup.submit(structs.replace(asked, priority=priority))
        while setup.queue.has_work:
            setup.turn()
        assert setup.ended == order


def test_part_of_a_query_waits_for_a_step_that_holds_it_whole() -> None:
    setup = Setup(num_blocks=40)
    setup.submit(scoring(1, [], [[1, 2, 3, 4, 5]] * 2))
    setup.submit(scoring(2, list(range(1, 9)), [[6]]))
    assert setup.turn() == [5, 5], "six tokens are left for a query of eight"
    assert setup.turn() == [8, 1]


def test_a_query_that_found_no_room_is_the_first_of_the_next_step() -> None:
    """Its turn is not over: else it would wait as long as there are items before it."""
    setup = Setup(num_blocks=40)
    setup.submit(scoring(1, [], [[1, 2, 3, 4, 5]] * 9))
    setup.submit(scoring(2, list(range(1, 9)), [[6]]))
    assert setup.turn() == [5, 5, 5]
    assert setup.turn() == [8, 1, 5]
    assert setup.turn() == [5, 5, 5]


def test_a_query_longer_than_any_step_is_split_at_once() -> None:
    setup = Setup(num_blocks=40)
    setup.submit(scoring(1, [], [[1, 2, 3, 4, 5]] * 2))
    setup.submit(scoring(2, [1 + i % 40 for i in range(24)], [[6]]))
    assert setup.turn() == [5, 5, 6]
    assert setup.turn() == [16]
    assert setup.turn() == [2, 1]


def test_part_of_an_item_takes_its_share_of_the_budget() -> None:
    setup = Setup(num_blocks=40)
    setup.submit(scoring(1, [], [[1, 2, 3, 4, 5]] * 2))
    setup.submit(scoring(2, [], [[6] * 20]))
    setup.submit(scoring(3, [], [[7, 8, 9]]))
    assert setup.turn() == [5, 5, 6]
    assert setup.turn() == [3, 13], "the one not served yet first"
    assert setup.turn() == [1]


def test_nothing_is_entered_for_a_request_that_ended_while_its_step_ran() -> None:
    """Its blocks have gone back, so that they must not become known."""
    setup = Setup(num_blocks=10)
    asked = scoring(1, list(range(1, 9)), [[5]])
    setup.submit(asked)
    setup.turn()
    setup.queue.abort(FRONTEND, 1)
    assert setup.ended == [1]
    setup.turn()
    assert setup.ended == [1]
    assert setup.pool.match(block_hashes(asked.query_token_ids, 4, versioned_salt("", 0))) == []


def test_gauges_and_counters() -> None:
    setup = Setup(num_blocks=5)  # four blocks
    query = list(range(1, 5))
    for handle in (1, 2):
        setup.submit(scoring(handle, query, [[5, 6]] if handle == 1 else [[5] * 9]))
    setup.turn()
    assert (setup.queue.num_active, setup.queue.num_waiting) == (1, 1)
    assert sum(map(len, setup.queue.holdings.held_blocks)) == 2
    while setup.queue.has_work:
        setup.turn()
    assert (setup.queue.num_active, setup.queue.num_waiting) == (0, 0)
    assert (setup.queue.holdings.prefix_queries, setup.queue.holdings.prefix_hits) == (8, 4)
    assert setup.queue.num_tokens == 4 + 2 + 9
