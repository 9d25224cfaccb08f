"""Rows given to choices and taken back."""

from __future__ import annotations

import numpy as np

from engine.rows import NO_TOKEN, Choice, RowTable
from sampling.params import SamplingParams
from tests.engine.choices import choice


def claim(table: RowTable, each: Choice, num_cached: int = 0) -> int:
    return table.claim(each, num_cached, len(each.token_ids), is_pinned=False)


def test_a_claimed_row_starts_from_its_choice_alone() -> None:
    """Nothing of the row's earlier choice is left."""
    table = RowTable(1, 32)
    first = choice([7] * 20, SamplingParams(stop_token_ids=(1, 2, 3), min_tokens=2))
    row = claim(table, first)
    table.num_drawing[row] = 2
    table.has_gap[row] = table.has_drafts[row] = True
    table.blocks[row], table.num_granted[row] = [4, 5], 2
    table.vacate(row)
    second = choice([1, 2, 3], SamplingParams(stop_token_ids=(9,), min_tokens=1))
    assert table.claim(second, 2, 3, is_pinned=True) == row
    assert table.choice(row) is second
    assert (first.row, second.row) == (None, row)
    assert table.token_ids[row, :3].tolist() == [1, 2, 3]
    assert (table.num_known[row], table.num_tokens[row], table.prompt_len[row]) == (3, 3, 3)
    computed = table.num_computed[row], table.num_settled[row], table.num_hashed[row]
    assert computed == (2, 2, 2)
    assert table.stop_ids[row].tolist() == [9, NO_TOKEN, NO_TOKEN, NO_TOKEN]
    assert (table.limit[row], table.min_known[row], table.prefill_end[row]) == (11, 4, 3)
    assert (table.num_drawing[row], table.num_granted[row], table.blocks[row]) == (0, 0, [])
    assert (table.has_gap[row], table.has_drafts[row], table.is_pinned[row]) == (False, False, True)


def test_a_readmitted_choice_knows_what_it_generated_and_keeps_its_limits() -> None:
    table = RowTable(2, 32)
    each = choice([1, 2, 3], SamplingParams(min_tokens=2))
    each.token_ids = np.array([1, 2, 3, 50, 51], dtype=np.int32)
    row = claim(table, each)
    assert (table.num_known[row], table.prompt_len[row]) == (5, 3)
    assert (table.limit[row], table.min_known[row]) == (11, 5)


def test_every_vacate_raises_the_epoch() -> None:
    table = RowTable(2, 32)
    for epoch in range(3):
        row = claim(table, choice([1]))
        assert table.epoch[row] == epoch
        table.vacate(row)


def test_rows_are_vacant_or_running_in_order_of_admission() -> None:
    table = RowTable(3, 32)
    rows = [claim(table, choice([1])) for _ in range(3)]
    assert sorted(rows) == [0, 1, 2]
    assert table.running == rows
    assert table.num_vacant == 0
    table.vacate(rows[1])
    assert (table.running, table.num_vacant) == ([rows[0], rows[2]], 1)
    assert claim(table, choice([2])) == rows[1]
    assert table.running == [rows[0], rows[2], rows[1]]


def test_the_limit_is_the_request_s_or_the_context() -> None:
    table = RowTable(1, 10)
    assert table.limit_of(choice([1] * 4, max_tokens=3)) == 7
    assert table.limit_of(choice([1] * 4, max_tokens=100)) == 10
    assert table.limit_of(choice([1] * 4, max_tokens=0)) == 5, "at least one token is drawn"


def test_more_stop_ids_widen_the_table_for_all() -> None:
    table = RowTable(2, 32)
    few = claim(table, choice([1], SamplingParams(stop_token_ids=(5,))))
    many = claim(table, choice([1], SamplingParams(stop_token_ids=tuple(range(6)))))
    assert table.stop_ids[many].tolist() == [0, 1, 2, 3, 4, 5]
    assert table.stop_ids[few].tolist() == [5] + [NO_TOKEN] * 5
