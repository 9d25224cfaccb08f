from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.attention.groups import Group, Sight, group_keys, split_rows
from engine.contracts.attention import AttentionInputs

BLOCK_SIZE = 4


def inputs_of(rows: list[tuple[int, int]]) -> AttentionInputs:
    """Rows of (keys, query tokens); row r's blocks are 100 r + 1, 100 r + 2, ..."""
    starts = np.concatenate([[0], np.cumsum([q for _, q in rows])]).astype(np.int32)
    width = max(-(-n // BLOCK_SIZE) for n, _ in rows)
    tables = torch.arange(1, width + 1, dtype=torch.int32) + 100 * torch.arange(
        len(rows), dtype=torch.int32
    ).view(-1, 1)
    return AttentionInputs(
        query_starts=torch.from_numpy(starts),
        query_starts_np=starts,
        seq_lens=torch.tensor([n for n, _ in rows], dtype=torch.int32),
        block_tables=tables,
        slots=torch.zeros(int(starts[-1]), dtype=torch.int64),
        seq_lens_np=np.array([n for n, _ in rows], dtype=np.int32),
        max_query_len=max(q for _, q in rows),
    )


def tokens_of(group: Group, num_tokens: int) -> list[int]:
    return torch.arange(num_tokens)[group.tokens].tolist()


def test_a_decode_step_is_one_group_without_indices() -> None:
    [group] = split_rows(inputs_of([(5, 1), (100, 1), (1, 1)]))
    assert group.num_rows == 3
    assert group.tokens == slice(0, 3)


def test_rows_are_grouped_by_query_tokens() -> None:
    inputs = inputs_of([(5, 1), (9, 4), (7, 1), (0, 0), (4, 4)])
    groups = {group.num_queries: group for group in split_rows(inputs)}
    assert sorted(groups) == [1, 4]
    assert tokens_of(groups[1], 10) == [0, 5]
    assert tokens_of(groups[4], 10) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert groups[4].seq_lens.tolist() == [9, 4]


def test_rows_far_apart_in_length_are_kept_apart() -> None:
    groups = list(split_rows(inputs_of([(5, 1), (1500, 1), (90, 1), (140, 1), (500, 1)])))
    assert [group.seq_lens.tolist() for group in groups] == [[5, 90], [140, 500], [1500]]
    assert [group.max_seq_len for group in groups] == [90, 500, 1500]


@pytest.mark.parametrize("window", [1, 2, 4, 5, 9])
@pytest.mark.parametrize("num_queries", [1, 3, 6])
def test_a_window_reads_just_the_blocks_it_may_touch(window: int, num_queries: int) -> None:
    rows = [(length, num_queries) for length in range(num_queries, 40)]
    [group] = split_rows(inputs_of(rows))
    sight = Sight(window, is_causal=True)
    found = group_keys(group, BLOCK_SIZE, sight, torch.float32, with_distance=False)
    keys, values = (found.pages.view(2, len(rows), -1) // 2).tolist()
    assert keys == values
    needed = 0
    for row, (length, _) in enumerate(rows):
        first = max(0, length - num_queries - window + 1) // BLOCK_SIZE
        last = (length - 1) // BLOCK_SIZE
        needed = max(needed, last - first + 1)
        assert {100 * row + 1 + block for block in range(first, last + 1)} <= set(keys[row])
        seen = (found.visible.bias[row, 0] == 0).sum(-1).tolist()
        positions = range(length - num_queries, length)
        assert seen == [min(window, position + 1) for position in positions]
    assert len(keys[0]) == needed
