"""What a step's result means for the rows, on plans made by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from engine.messages.request import Request
from engine.messages.step_output import Finish, Origin
from engine.plan import StepPlan
from engine.planning.settle import Settled, settle
from engine.rows import Choice, RowTable
from sampling.params import SamplingParams
from tests.engine.planning.settled_steps import result_of

PROMPT_LEN = 5


def table_of(*params: SamplingParams, max_new: int = 1, max_tokens: int = 20) -> RowTable:
    """Rows 0, 1, ... with a prompt of 5 tokens each, one for each of `params`."""
    table = RowTable(4, 64, max_new)
    prompt = np.arange(PROMPT_LEN, dtype=np.int32)
    for i, each in enumerate(params):
        request = Request(handle=i, prompt_token_ids=prompt, params=each, max_tokens=max_tokens)
        row = table.claim(Choice(b"", request, 0, 0, i, prompt), 0, PROMPT_LEN, is_pinned=False)
        assert row == i
    return table


def plan_of(
    table: RowTable, rows: list[int], samples: list[bool], num_drafts: int = 0, starts: int = 0
) -> StepPlan:
    """A step that computes `rows` up to their newest token, as the scheduler would count it.

    With `starts` of 0 the rows prefill; otherwise they decode.
    """
    ids = np.array(rows, dtype=np.int32)
    draws = np.array(samples, dtype=np.bool_)
    decodes = draws & (starts > 0)
    num_query = np.full(len(rows), 1 + num_drafts if starts else PROMPT_LEN, dtype=np.int32)
    table.num_computed[ids] = starts + num_query
    table.num_tokens[ids] += draws + decodes * num_drafts
    table.num_drawing[ids] += draws
    return StepPlan(
        rows=ids,
        num_query=num_query,
        starts=np.full(len(rows), starts, dtype=np.int32),
        samples=draws,
        epochs=table.epoch[ids],
        choices=table.choices_of(ids),
        num_prompt_tokens=0,
        num_drafts=num_drafts,
        num_proposed=num_drafts,
        decodes=decodes,
        proposes=np.zeros(len(rows), dtype=np.bool_),
        constrained=np.zeros(len(rows), dtype=np.bool_),
    )


def kept(settled: Settled) -> dict[int, list[int]]:
    """The tokens that each row keeps."""
    columns = settled.rows.tolist(), settled.token_ids.tolist(), settled.num_new.tolist()
    return {row: ids[:count] for row, ids, count in zip(*columns, strict=True)}


def test_tokens_are_entered_behind_the_known_ones() -> None:
    table = table_of(SamplingParams(), SamplingParams(), SamplingParams())
    plan = plan_of(table, [2, 0, 1], [True, False, True])
    settled = settle(table, plan, result_of([[30], [31]]))
    assert kept(settled) == {2: [30], 1: [31]}
    assert settled.result_idx.tolist() == settled.logit_idx.tolist() == [0, 1]
    assert settled.first_drawn.tolist() == [2, 1]
    assert table.num_known[:3].tolist() == [5, 6, 6]
    assert table.num_settled[:3].tolist() == [5, 5, 5], "rows that do not draw were computed too"
    assert table.num_drawing[:3].tolist() == [0, 0, 0]
    assert table.token_ids[2, :6].tolist() == [0, 1, 2, 3, 4, 30]


def test_only_the_first_token_of_a_choice_counts_as_first() -> None:
    table = table_of(SamplingParams())
    settle(table, plan_of(table, [0], [True]), result_of([[30]]))
    again = settle(table, plan_of(table, [0], [True], starts=5), result_of([[31]]))
    assert again.first_drawn.tolist() == []
    assert table.num_known[0] == 7


def test_what_a_vacated_row_drew_is_dropped_and_others_keep_their_own() -> None:
    table = table_of(SamplingParams(), SamplingParams())
    plan = plan_of(table, [0, 1], [True, True])
    old = table.choice(0)
    table.vacate(0)
    assert table.claim(old, 4, PROMPT_LEN, is_pinned=False) == 0
    settled = settle(table, plan, result_of([[30], [31]]))
    assert kept(settled) == {1: [31]}
    assert settled.result_idx.tolist() == [1]
    assert (table.num_known[0], table.num_settled[0], table.num_drawing[0]) == (5, 4, 0)


@pytest.mark.parametrize(
    ("params", "max_tokens", "finish"),
    [
        (SamplingParams(), 2, Finish.RUNNING),
        (SamplingParams(), 1, Finish.LENGTH),
        (SamplingParams(stop_token_ids=(9, 30)), 2, Finish.STOP),
        (SamplingParams(stop_token_ids=(9, 30)), 1, Finish.STOP),  # the stop id is the reason
        (SamplingParams(stop_token_ids=(30,), min_tokens=1), 2, Finish.RUNNING),
        (SamplingParams(stop_token_ids=(9,)), 2, Finish.RUNNING),
    ],
)
def test_why_a_choice_ends(params: SamplingParams, max_tokens: int, finish: Finish) -> None:
    table = table_of(params, max_tokens=max_tokens)
    settled = settle(table, plan_of(table, [0], [True]), result_of([[30]]))
    assert settled.finish.tolist() == [finish]
    assert kept(settled) == {0: [30]}, "a stop token is kept"


def test_a_bad_row_keeps_no_token_and_its_neighbour_does() -> None:
    table = table_of(SamplingParams(), SamplingParams())
    result = result_of([[], [31]], failed=[Finish.NAN, Finish.RUNNING])
    settled = settle(table, plan_of(table, [0, 1], [True, True]), result)
    assert settled.finish.tolist() == [Finish.NAN, Finish.RUNNING]
    assert kept(settled) == {0: [], 1: [31]}
    assert table.num_known[:2].tolist() == [5, 6]


def test_refused_drafts_are_taken_back() -> None:
    """Of 1 + 3 tokens scheduled two are kept: the others were never computed, drawn or known."""
    table = table_of(SamplingParams(), SamplingParams(), max_new=4)
    settle(table, plan_of(table, [0, 1], [True, True]), result_of([[20], [21]]))
    plan = plan_of(table, [0, 1], [True, True], num_drafts=3, starts=5)
    assert table.num_tokens[:2].tolist() == [10, 10]
    settled = settle(table, plan, result_of([[30, 31], [32, 33, 34, 35]]))
    assert kept(settled) == {0: [30, 31], 1: [32, 33, 34, 35]}
    assert settled.logit_idx.tolist() == [0, 4], "four logit rows each"
    assert table.num_known[:2].tolist() == [8, 10]
    assert table.num_tokens[:2].tolist() == [8, 10]
    assert table.num_computed[:2].tolist() == [7, 9]
    assert table.num_settled[:2].tolist() == [7, 9], "the last token is not computed"


def test_a_stop_among_accepted_drafts_ends_there() -> None:
    params = SamplingParams(stop_token_ids=(31,))
    table = table_of(params, max_new=4)
    settle(table, plan_of(table, [0], [True]), result_of([[20]]))
    plan = plan_of(table, [0], [True], num_drafts=3, starts=5)
    settled = settle(table, plan, result_of([[30, 31, 32, 31]]))
    assert kept(settled) == {0: [30, 31]}
    assert settled.finish.tolist() == [Finish.STOP]
    assert table.num_known[0] == 8


def test_tokens_that_were_not_drawn_end_nothing() -> None:
    """77 is where no token was drawn."""
    table = table_of(SamplingParams(stop_token_ids=(77,)), max_new=4)
    settle(table, plan_of(table, [0], [True]), result_of([[20]]))
    plan = plan_of(table, [0], [True], num_drafts=3, starts=5)
    result = result_of([[30, 77, 77, 77]])
    result.num_new[:] = 1
    settled = settle(table, plan, result)
    assert settled.finish.tolist() == [Finish.RUNNING]
    assert kept(settled) == {0: [30]}


def test_the_limit_cuts_accepted_drafts() -> None:
    table = table_of(SamplingParams(), max_new=4, max_tokens=3)
    settle(table, plan_of(table, [0], [True]), result_of([[20]]))
    plan = plan_of(table, [0], [True], num_drafts=3, starts=5)
    settled = settle(table, plan, result_of([[30, 31, 32, 33]]))
    assert kept(settled) == {0: [30, 31]}
    assert settled.finish.tolist() == [Finish.LENGTH]


def test_with_drafts_logprobs_are_found_behind_rows_that_do_not_draw() -> None:
    """A prefilling row that draws has one logit row, a decoding one 1 + k, others none."""
    table = table_of(SamplingParams(), SamplingParams(), SamplingParams(), max_new=3)
    settle(table, plan_of(table, [0], [True]), result_of([[20]]))
    plan = plan_of(table, [0, 1, 2], [True, False, True], num_drafts=2, starts=5)
    plan.decodes[2] = False
    settled = settle(table, plan, result_of([[30, 31, 32], [40]]))
    assert settled.rows.tolist() == [0, 2]
    assert settled.logit_idx.tolist() == [0, 3]
    assert settled.result_idx.tolist() == [0, 1]


def test_where_tokens_came_from() -> None:
    """Of four rows: no drafts, two of three accepted, all three, and both that there was room for.

    What comes after a row's end is undefined.
    """
    settled = Settled(
        rows=np.arange(4),
        token_ids=np.zeros((4, 4), dtype=np.int32),
        num_new=np.array([1, 3, 4, 2]),
        logit_idx=np.arange(4) * 4,
        finish=np.zeros(4, dtype=np.uint8),
        result_idx=np.arange(4),
        first_drawn=np.zeros(0, dtype=np.int64),
        num_offered=np.array([0, 3, 3, 2], dtype=np.int32),
        num_accepted=np.array([0, 2, 3, 2], dtype=np.int32),
    )
    reported = [
        [Origin(code).name.lower() for code in codes[:count]]
        for codes, count in zip(settled.origins().tolist(), settled.num_new.tolist(), strict=True)
    ]
    assert reported == [
        ["drawn"],
        ["accepted", "accepted", "recovered"],
        ["accepted", "accepted", "accepted", "bonus"],
        ["accepted", "accepted"],
    ]


def test_counts_of_drafts_follow_the_rows_that_are_left() -> None:
    table = table_of(SamplingParams(), SamplingParams(), max_new=3)
    settle(table, plan_of(table, [0, 1], [True, True]), result_of([[20], [21]]))
    plan = plan_of(table, [0, 1], [True, True], num_drafts=2, starts=5)
    table.vacate(0)
    counts = np.array([2, 1], dtype=np.int32), np.array([0, 1], dtype=np.int32)
    drawn = result_of([[30], [31, 32]])
    drawn = replace(drawn, num_offered=counts[0], num_accepted=counts[1])
    settled = settle(table, plan, drawn)
    assert settled.num_offered is not None
    assert settled.num_accepted is not None
    assert (settled.num_offered.tolist(), settled.num_accepted.tolist()) == ([1], [1])
    assert settled.origins().tolist() == [[Origin.ACCEPTED, Origin.BONUS]]


@pytest.mark.parametrize("seed", range(40))
def test_rows_end_where_their_first_token_does_that_ends_them(seed: int) -> None:
    """Rows of every kind at random, against a reading of them token by token."""
    rng = random.Random(seed)
    table = table_of(
        *(
            SamplingParams(
                stop_token_ids=tuple(rng.sample(range(30, 60), rng.randrange(3))),
                min_tokens=rng.randrange(5),
            )
            for _ in range(4)
        ),
        max_new=4,
        max_tokens=rng.choice([2, 4, 40]),
    )
    while table.running:
        known = table.num_known.tolist()
        plan = plan_of(table, list(table.running), [True] * len(table.running), 3, starts=5)
        drawn = [[rng.randrange(30, 60) for _ in range(rng.randrange(5))] for _ in plan.rows]
        failed = [Finish.RUNNING if ids else Finish.NAN for ids in drawn]
        settled = settle(table, plan, result_of(drawn, failed))
        expected = {
            row: _read(table, row, known[row], ids)
            for row, ids in zip(plan.rows.tolist(), drawn, strict=True)
        }
        assert kept(settled) == {row: ids for row, (ids, _) in expected.items()}
        assert settled.finish.tolist() == [finish for _, finish in expected.values()]
        for row in settled.rows[settled.finish != Finish.RUNNING].tolist():
            table.vacate(row)


def _read(table: RowTable, row: int, known: int, ids: list[int]) -> tuple[list[int], Finish]:
    """What a row keeps of these tokens, and how it ends."""
    request = table.choice(row).request
    for count, token in enumerate(ids, start=1):
        may_stop = known + count > PROMPT_LEN + request.params.min_tokens
        if may_stop and token in request.params.stop_token_ids:
            return ids[:count], Finish.STOP
        if known + count >= PROMPT_LEN + request.max_tokens:
            return ids[:count], Finish.LENGTH
    return ids, Finish.RUNNING if ids else Finish.NAN
