"""The rows of a scoring request: every token once for what it is read for, in blocks of its own."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from engine.messages.request import Branches, ScoringRequest
from engine.scoring.layout import layout_of

SIZE = 4


def request(query: list[int], lens: list[int], branches: list[list[list[int]]]) -> ScoringRequest:
    """Items numbered 100, 101, .. whose branches have these tokens, one position read of each."""
    flat = [branch for each in branches for branch in each]
    return ScoringRequest(
        handle=1,
        query_token_ids=np.array(query, dtype=np.int32),
        item_token_ids=np.arange(100, 100 + sum(lens), dtype=np.int32),
        item_lens=np.array(lens, dtype=np.int32),
        branches=Branches(
            counts=np.array([len(each) for each in branches], dtype=np.int32),
            lens=np.array([len(branch) for branch in flat], dtype=np.int32),
            token_ids=np.array([token for branch in flat for token in branch], dtype=np.int32),
        ),
        num_read=np.arange(1, 1 + len(flat), dtype=np.int32),
        id_lists=np.array([[7]], dtype=np.int32),
    )


def test_an_item_of_several_branches_begins_with_a_stem_of_full_blocks() -> None:
    made = layout_of(
        request([1, 2, 3, 4, 5], [8, 2, 3, 9], [[[50], [60, 61]], [[]], [[70], []], [[80]]]),
        4,
        SIZE,
    )
    rows = np.split(made.token_ids, made.offsets[1:-1])
    assert [row.tolist() for row in rows] == [
        [5, *range(100, 107)],  # the stem of the first item
        [107, 50],
        [107, 60, 61],
        [5, 108, 109],  # a lone branch needs no stem
        [5, 110, 111, 112, 70],  # no more than a block, of which the last token is read
        [5, 110, 111, 112],
        [5, *range(113, 122), 80],
    ]
    assert made.first_rows.tolist() == [0, 3, 4, 6, 7]
    assert made.stems.tolist() == [0, 2, 2, 0, 0, 0, 0]
    assert made.num_blocks.tolist() == [2, 1, 1, 1, 2, 1, 3]
    assert made.num_read.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert [made.is_stem(row) for row in range(7)] == [True] + [False] * 6
    assert made.longest == 3
    assert made.item_tokens(0, 9).tolist() == [13, 3, 9, 11]
    assert made.item_blocks(1, 2).tolist() == [1, 3]


def test_items_without_branches_are_rows_as_they_are() -> None:
    asked = request([], [2, 3], [[[]], [[]]])
    bare = ScoringRequest(
        **{name: getattr(asked, name) for name in asked.__struct_fields__ if name != "branches"}
    )
    for made in (layout_of(asked, 0, SIZE), layout_of(bare, 0, SIZE)):
        assert made.token_ids.tolist() == [100, 101, 102, 103, 104]
        assert made.offsets.tolist() == [0, 2, 5]


@pytest.mark.parametrize("branch", [None, [], [50], [60, 61]])
@pytest.mark.parametrize("length", [1, 3, 4, 9])
@pytest.mark.parametrize("query", [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]])
def test_a_lone_item_is_laid_out_as_among_others(
    query: list[int], length: int, branch: list[int] | None
) -> None:
    branches: list[list[list[int]]] = [[branch or []], [[]]]
    lone, both = (request(query, [length, 2][:count], branches[:count]) for count in (1, 2))
    if branch is None:
        lone = msgspec.structs.replace(lone, branches=None)
    found, among = layout_of(lone, 4, SIZE), layout_of(both, 4, SIZE)
    assert found.num_rows == 1
    assert found.token_ids.tolist() == among.token_ids[: among.offsets[1]].tolist()
    for own, all_rows in zip(found[1:], among[1:], strict=True):
        assert own.tolist() == all_rows[: len(own)].tolist()
        assert own.dtype == all_rows.dtype
