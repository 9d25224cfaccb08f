"""Where rows are granted snapshots, and when these can be found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.memory.snapshots import NO_SNAPSHOT, SnapshotPool
from engine.messages.request import Request
from engine.plan import SnapshotGrant
from engine.planning import row_snapshots as module
from engine.planning.drafting import NO_DRAFTS, DraftRules
from engine.planning.row_snapshots import RowSnapshots
from engine.rows import Choice, RowTable
from sampling.params import SamplingParams

BLOCK = 4


def make(
    num_snapshots: int = 8,
    drafting: DraftRules = NO_DRAFTS,
    multiple: int = BLOCK,
    reuses_replies: bool = True,
) -> tuple[RowSnapshots, RowTable]:
    table = RowTable(3, 100)
    pool = SnapshotPool(num_snapshots)
    snapshots = RowSnapshots(pool, table, drafting, BLOCK, multiple, reuses_replies=reuses_replies)
    return snapshots, table


def claim(
    table: RowTable, prompt_len: int, num_cached: int = 0, **fields: Any
) -> tuple[int, Choice]:
    ids = np.arange(prompt_len, dtype=np.int32)
    own = Request(handle=0, prompt_token_ids=ids, params=SamplingParams(), max_tokens=40, **fields)
    choice = Choice(b"", own, 0, 0, 0, ids)
    return table.claim(choice, num_cached, prompt_len, is_pinned=False), choice


def take(snapshots: RowSnapshots, row: int, end: int, *, decodes: bool) -> list[SnapshotGrant]:
    return snapshots.take(np.array([row]), np.array([end]), np.array([decodes]))


@pytest.mark.parametrize(
    ("prompt_len", "known", "restored", "wanted"),
    [
        (13, 0, 0, (12,)),  # the last block that the same prompt could share
        (12, 0, 0, (8,)),
        (4, 0, 0, ()),
        (13, 2, 0, (8, 12)),  # where it leaves what is known
        (13, 3, 0, (12,)),
        (13, 2, 2, (12,)),
        (13, 3, 3, ()),
    ],
)
def test_prompts_keep_their_end_and_where_they_branch(
    prompt_len: int, known: int, restored: int, wanted: tuple[int, ...]
) -> None:
    snapshots, table = make()
    row, choice = claim(table, prompt_len, restored * BLOCK)
    snapshots.admit(row, choice, NO_SNAPSHOT, restored, known)
    grants = take(snapshots, row, prompt_len, decodes=False)
    assert [grant.ends for grant in grants] == ([wanted] if wanted else [])


def test_a_drafter_that_looks_ahead_holds_the_last_block_back() -> None:
    snapshots, table = make(drafting=DraftRules(num_tokens=2, looks_ahead=True))
    row, choice = claim(table, 13)
    snapshots.admit(row, choice, NO_SNAPSHOT, 0, 0)
    assert take(snapshots, row, 13, decodes=False) == [SnapshotGrant(row, (8,), (1,))]


def test_ends_are_multiples() -> None:
    snapshots, table = make(multiple=8)
    row, choice = claim(table, 30)
    snapshots.admit(row, choice, NO_SNAPSHOT, 0, 5)
    assert take(snapshots, row, 30, decodes=False)[0].ends == (16, 24)


@pytest.mark.parametrize("n", [1, 2])
def test_without_prefix_caching_only_a_requests_own_choices_find_it(n: int) -> None:
    snapshots, table = make(reuses_replies=False)
    row, choice = claim(table, 13, n=n)
    snapshots.admit(row, choice, NO_SNAPSHOT, 0, 0)
    grants = take(snapshots, row, 13, decodes=False)
    assert [grant.ends for grant in grants] == ([(12,)] if n > 1 else [])
    assert take(snapshots, row, 1000, decodes=True) == []


def test_a_reply_makes_one_every_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first step that may reach it, and only once the last was read back."""
    monkeypatch.setattr(module, "REPLY_TOKENS", 7)  # 8, in whole blocks
    snapshots, table = make(drafting=DraftRules(num_tokens=3))
    row, choice = claim(table, 5)
    snapshots.admit(row, choice, NO_SNAPSHOT, 0, 0)
    assert take(snapshots, row, 5, decodes=False)[0].ends == (4,)
    snapshots.note(row, 4, b"4")
    table.num_settled[row] = 5
    snapshots.register()
    table.num_computed[row] = 5
    assert snapshots.num_steps_without(np.array([row])) == 2
    assert take(snapshots, row, 7, decodes=True) == []
    assert take(snapshots, row, 10, decodes=True)[0].ends == (8,)
    assert take(snapshots, row, 16, decodes=True) == [], "8 may not be read back"
    snapshots.note(row, 8, b"8")
    for settled, is_found in ((8, False), (10, False), (11, True)):  # drafts enter a step late
        table.num_settled[row] = settled
        snapshots.register()
        assert (snapshots.pool.find([b"8"]) != (0, NO_SNAPSHOT)) == is_found
    assert take(snapshots, row, 24, decodes=True)[0].ends == (24,)
    snapshots.check()


def test_a_row_that_is_released_gives_up_what_it_reserved() -> None:
    snapshots, table = make(num_snapshots=1)
    row, choice = claim(table, 13)
    snapshots.admit(row, choice, NO_SNAPSHOT, 0, 0)
    snapshots.note(row, 12, b"12")
    snapshots.release(row)
    assert take(snapshots, row, 13, decodes=False) == [], "it was never published"
    table.num_settled[row] = 13
    snapshots.register()
    assert snapshots.pool.find([b"12"]) == (0, NO_SNAPSHOT)
    snapshots.check()
    other, choice = claim(table, 9)
    snapshots.admit(other, choice, NO_SNAPSHOT, 0, 0)
    assert take(snapshots, other, 9, decodes=False) == [SnapshotGrant(other, (8,), (1,))]


def test_what_cannot_be_reserved_is_left_out() -> None:
    snapshots, table = make(num_snapshots=1)
    row, choice = claim(table, 13)
    snapshots.admit(row, choice, NO_SNAPSHOT, 0, 2)
    assert take(snapshots, row, 13, decodes=False) == [SnapshotGrant(row, (8,), (1,))]
    snapshots.note(row, 12, b"12")  # its block is found all the same
    table.num_settled[row] = 13
    snapshots.register()
    assert snapshots.pool.num_findable == 0
