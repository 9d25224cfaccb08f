"""One scoring request: its rows in order, whatever the steps hold."""

from __future__ import annotations

import numpy as np

from engine.memory.blocks import block_hashes, versioned_salt
from engine.messages.request import ScoringRequest
from engine.scoring.progress import ScoringProgress

SIZE = 4


def progress(
    query: list[int],
    items: list[list[int]],
    num_read: list[int],
    id_lists: list[list[int]] | None = None,
    priority: int = 0,
) -> ScoringProgress:
    ids = id_lists or [[7, 8]]
    asked = ScoringRequest(
        handle=1,
        query_token_ids=np.array(query, dtype=np.int32),
        item_token_ids=np.array([token for item in items for token in item], dtype=np.int32),
        item_lens=np.array([len(item) for item in items], dtype=np.int32),
        num_read=np.array(num_read, dtype=np.int32),
        id_lists=np.array(ids, dtype=np.int32),
        priority=priority,
    )
    made = ScoringProgress.of(b"", asked, 1, SIZE)
    made.blocks, made.spare = [11, 12][: made.shared_len // SIZE], [21, 22, 23]
    return made


def test_items_are_preceded_by_the_rest_of_the_query() -> None:
    each = progress(list(range(1, 7)), [[50], [60, 61]], [1, 1])
    assert each.shared_len == 4
    assert each.layout.token_ids.tolist() == [5, 6, 50, 5, 6, 60, 61]
    assert each.layout.offsets.tolist() == [0, 3, 7]
    assert each.layout.longest == 1
    assert each.hashes == block_hashes(
        np.array([1, 2, 3, 4], dtype=np.int32), SIZE, versioned_salt("", 0)
    )
    assert each.values.shape == (2, 2)
    assert each.others.shape == (2,)


def test_a_query_of_whole_blocks_leaves_nothing_to_its_items() -> None:
    each = progress(list(range(1, 9)), [[50], [60, 61]], [1, 1])
    assert each.shared_len == 8
    assert each.layout.token_ids.tolist() == [50, 60, 61]
    assert each.layout.offsets.tolist() == [0, 1, 3]


def test_the_query_s_blocks_are_computed_in_order_and_nothing_is_read() -> None:
    each = progress(list(range(1, 10)), [[50]], [1])
    rows = [each.query_rows(3), each.query_rows(5)]
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, 3], [4, 5, 6, 7, 8]]
    assert [row.starts.tolist() for row in rows] == [[0], [3]]
    assert [row.counts.tolist() for row in rows] == [[3], [5]]
    assert [row.tables.tolist() for row in rows] == [[[11, 12]]] * 2
    assert [row.num_read.tolist() for row in rows] == [[0], [0]]
    assert [row.id_lists.shape for row in rows] == [(0, 2), (0, 2)]
    assert each.num_computed == 8


def test_whole_items_follow_the_shared_blocks() -> None:
    each = progress(list(range(1, 6)), [[50], [60, 61], [70]], [1, 2, 1], [[7, 8], [9, -1]])
    first = each.item_rows(2, [31, 32], [])
    assert first.token_ids.tolist() == [5, 50, 5, 60, 61]
    assert first.counts.tolist() == [2, 3]
    assert first.starts.tolist() == [4, 4]
    assert first.tables.tolist() == [[11, 31], [11, 32]]
    assert first.num_read.tolist() == [1, 2]
    assert first.num_shared == 1
    assert first.id_lists.tolist() == [[7, 8], [9, -1], [7, 8]], "lists in turn"
    assert not each.planned
    last = each.item_rows(1, [33], [])
    assert last.token_ids.tolist() == [5, 70]
    assert last.id_lists.tolist() == [[9, -1]], "the turn goes on from step to step"
    assert each.planned


def test_a_split_item_is_computed_in_the_spare_blocks_and_read_where_its_end_lies() -> None:
    """Six tokens with the query's rest, of which the last three are read, in steps of 2, 2, 2."""
    each = progress(list(range(1, 6)), [[50, 51, 52, 53, 54], [60]], [3, 1])
    rows = [each.row_part(2, each.own_spare) for _ in range(3)]
    assert [row.token_ids.tolist() for row in rows] == [[5, 50], [51, 52], [53, 54]]
    assert [row.starts.tolist() for row in rows] == [[4], [6], [8]]
    assert [row.tables.tolist() for row in rows] == [[[11, 21, 22]]] * 3
    assert [row.num_read.tolist() for row in rows] == [[0], [1], [2]]
    assert [len(row.id_lists) for row in rows] == [0, 1, 2]
    assert [row.num_shared for row in rows] == [0, 0, 0]
    assert (each.next_item, each.num_split, each.num_planned) == (1, 0, 3)
    assert each.item_rows(1, [31], []).token_ids.tolist() == [5, 60]


def test_rank_is_priority_then_turn_then_arrival() -> None:
    early, late = progress([], [[5]], [1]), progress([], [[5]], [1], priority=-1)
    assert late.rank < early.rank
    waiting, served = progress([], [[5]], [1]), progress([], [[5]], [1])
    served.last_turn, waiting.arrival = 3, 9
    assert waiting.rank < served.rank
    served.last_turn = waiting.last_turn
    assert served.rank < waiting.rank
