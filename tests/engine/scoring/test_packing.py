"""Rows of several requests put together into one step."""

from __future__ import annotations

import numpy as np

from engine.memory.blocks import NULL_BLOCK
from engine.memory.snapshots import NO_SNAPSHOT
from engine.rows import NO_TOKEN
from engine.scoring.packing import Rows, make_plan, no_snapshots


def test_rows_that_share_blocks_come_last_and_positions_are_read_in_order() -> None:
    def rows(first_id: int, counts: list[int], num_read: list[int], num_shared: int) -> Rows:
        start = num_shared * 4
        return Rows(
            token_ids=np.arange(first_id, first_id + sum(counts), dtype=np.int32),
            counts=np.array(counts),
            starts=np.full(len(counts), start),
            tables=np.arange(len(counts) * (num_shared + 2), dtype=np.int32).reshape(
                len(counts), -1
            ),
            num_read=np.array(num_read),
            sources=no_snapshots(len(counts)),
            targets=no_snapshots(len(counts)),
            id_lists=np.full((sum(num_read), 1), first_id, dtype=np.int32),
            num_shared=num_shared,
        )

    many = [2] * 200
    plan = make_plan(
        [
            rows(1000, many, [2] * 200, num_shared=2),
            rows(100, [3, 4], [1, 2], num_shared=2),  # too few for it to pay
            rows(2000, many, [1] * 200, num_shared=3),
            rows(200, [8], [0], num_shared=0),
        ],
        block_size=4,
    )
    tokens = [*range(100, 107), *range(200, 208), *range(1000, 1400), *range(2000, 2400)]
    assert plan.token_ids.tolist() == tokens
    read = plan.token_ids[plan.read_tokens]
    assert read.tolist() == [*range(1000, 1400), 102, 105, 106, *range(2001, 2400, 2)]
    assert (plan.id_lists[:, 0] == read // 100 * 100)[400:403].all()
    assert plan.seq_lens[[0, 1, 2, 3, 203]].tolist() == [11, 12, 8, 10, 14]
    assert plan.sharing is not None
    assert plan.sharing.starts.tolist() == [3, 203, 403]
    assert plan.sharing.num_blocks.tolist() == [2, 3]


def test_tokens_lie_where_their_row_s_blocks_say() -> None:
    """Two rows of different tables and starts: positions are absolute, slots are in blocks."""
    plan = make_plan(
        [
            Rows(
                token_ids=np.array([5, 6, 7], dtype=np.int32),
                counts=np.array([3]),
                starts=np.array([2]),
                tables=np.array([[9, 4]], dtype=np.int32),
                num_read=np.array([0]),
                sources=no_snapshots(1),
                targets=no_snapshots(1),
                id_lists=np.zeros((0, 2), dtype=np.int32),
            ),
            Rows(
                token_ids=np.array([8, 9, 10], dtype=np.int32),
                counts=np.array([1, 2]),
                starts=np.array([8, 0]),
                tables=np.array([[1, 2, 3], [6, NULL_BLOCK, NULL_BLOCK]], dtype=np.int32),
                num_read=np.array([1, 2]),
                sources=no_snapshots(2),
                targets=no_snapshots(2),
                id_lists=np.array([[1, 2], [3, 4], [5, 6]], dtype=np.int32),
            ),
        ],
        block_size=4,
    )
    assert plan.token_ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert plan.positions.tolist() == [2, 3, 4, 8, 0, 1]
    assert plan.slots.tolist() == [9 * 4 + 2, 9 * 4 + 3, 4 * 4, 3 * 4, 6 * 4, 6 * 4 + 1]
    assert plan.query_starts.tolist() == [0, 3, 4, 6]
    assert plan.query_starts.dtype == np.int32
    assert plan.seq_lens.tolist() == [5, 9, 2]
    assert plan.block_tables.tolist() == [[9, 4, NULL_BLOCK], [1, 2, 3], [6, 0, 0]]
    assert plan.read_tokens.tolist() == [3, 4, 5]
    assert plan.id_lists.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert plan.sharing is None


def test_rows_that_begin_from_what_others_leave_are_in_later_parts() -> None:
    """Two items of one request, each a stem and two branches, and then a lone row of another."""

    def rows(first_id: int, sources: list[int], targets: list[int]) -> Rows:
        count = len(sources)
        return Rows(
            token_ids=np.arange(first_id, first_id + count, dtype=np.int32),
            counts=np.ones(count, dtype=np.int64),
            starts=np.zeros(count, dtype=np.int64),
            tables=np.arange(1, count + 1, dtype=np.int32)[:, None],
            num_read=np.array([int(each == NO_SNAPSHOT) for each in targets]),
            id_lists=np.full((targets.count(NO_SNAPSHOT), 1), first_id, dtype=np.int32),
            sources=np.array(sources, dtype=np.int32),
            targets=np.array(targets, dtype=np.int32),
        )

    parts = [
        rows(50, [0], [9]),  # a query, from whose state the items begin
        rows(100, [9, 1, 1, 9, 2, 2], [1, 0, 0, 2, 0, 0]),
        rows(200, [7], [0]),
    ]
    plan = make_plan(parts, block_size=4, keeps_states=True)
    assert plan.token_ids.tolist() == [50, 100, 103, 101, 102, 104, 105, 200]
    assert plan.token_ids[plan.read_tokens].tolist() == [101, 102, 104, 105, 200]
    assert plan.id_lists[:, 0].tolist() == [100, 100, 100, 100, 200]
    assert plan.states is not None
    assert plan.states.sources.tolist() == [0, 9, 9, 1, 1, 2, 2, 7]
    assert plan.states.targets.tolist() == [9, 1, 2, 0, 0, 0, 0, 0]
    assert plan.states.part_starts.tolist() == [0, 1, 3]
    for first in (rows(1, [3], [3]), rows(1, [3], [4])):
        again = make_plan([first, rows(2, [9], [3])], block_size=4, keeps_states=True)
        assert again.states is not None
        assert again.states.part_starts.tolist() == [0, 1], "none is written beside a reader"


def test_lists_of_different_widths_are_padded_with_no_token() -> None:
    def row(ids: list[int]) -> Rows:
        return Rows(
            token_ids=np.array([5], dtype=np.int32),
            counts=np.array([1]),
            starts=np.array([0]),
            tables=np.array([[1]], dtype=np.int32),
            num_read=np.array([1]),
            sources=no_snapshots(1),
            targets=no_snapshots(1),
            id_lists=np.array([ids], dtype=np.int32),
        )

    plan = make_plan([row([1]), row([2, 3, 4])], block_size=4)
    assert plan.id_lists.tolist() == [[1, NO_TOKEN, NO_TOKEN], [2, 3, 4]]
