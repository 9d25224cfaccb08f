"""Prompt logprobs joined of spans, on plans made by hand."""

from __future__ import annotations

import numpy as np

from engine.arrays import LogprobArrays
from engine.contracts.runner import StepResult
from engine.messages.request import PromptLogprobsParams, Request
from engine.messages.step_output import PromptLogprobs
from engine.plan import PromptSpan, StepPlan
from engine.planning.prompt_parts import join_prompt_parts
from engine.rows import Choice, RowTable
from sampling.params import SamplingParams

PROMPT = np.arange(7, dtype=np.int32)
START = 2
"""Values are asked for from here on: 5 of them."""


def admitted(table: RowTable, handle: int, *, by_part: bool = False) -> Choice:
    """A choice in a row, whose prompt is to be reported."""
    request = Request(
        handle=handle,
        prompt_token_ids=PROMPT,
        params=SamplingParams(),
        max_tokens=9,
        prompt_logprobs=PromptLogprobsParams(start=START, by_part=by_part),
    )
    choice = Choice(b"front", request, 0, 0, handle, PROMPT, prompt_parts=[])
    table.claim(choice, 0, len(PROMPT), is_pinned=False)
    return choice


def step_of(table: RowTable, choices: list[Choice], counts: list[int]) -> StepPlan:
    """A step that reports so many positions of each choice, or no span for none."""
    rows = np.array([choice.row for choice in choices], dtype=np.int32)
    ones, none = np.ones_like(rows), np.zeros(len(rows), dtype=np.bool_)
    return StepPlan(
        rows=rows,
        num_query=ones,
        starts=0 * ones,
        samples=none,
        epochs=table.epoch[rows],
        choices=choices,
        num_prompt_tokens=0,
        num_drafts=0,
        num_proposed=0,
        decodes=none,
        proposes=none,
        constrained=none,
        spans=[PromptSpan(i, 0, n, choices[i]) for i, n in enumerate(counts) if n],
    )


def read_back(
    table: RowTable, plan: StepPlan, parts: list[list[float]]
) -> list[tuple[bytes, PromptLogprobs]]:
    """What is complete once these values of the spans are there."""
    arrays = [LogprobArrays.zeros((len(values),), 0, 0) for values in parts]
    for part, values in zip(arrays, parts, strict=True):
        part.chosen[:] = values
    nothing = np.zeros((0, 1), dtype=np.int32)
    result = StepResult(
        token_ids=nothing,
        num_new=nothing[:, 0],
        failed=np.zeros(0, dtype=np.uint8),
        num_offered=None,
        num_accepted=None,
        logprobs=None,
        prompt_logprobs=arrays,
    )
    return list(join_prompt_parts(table, plan, result))


def test_parts_are_joined_in_order_and_given_out_once() -> None:
    table = RowTable(2, 64)
    choices = [admitted(table, 10), admitted(table, 11)]
    assert read_back(table, step_of(table, choices, [2, 0]), [[1.0, 2.0]]) == []
    plan = step_of(table, choices, [3, 4])
    [(frontend, whole)] = read_back(table, plan, [[3.0, 4.0, 5.0], [6.0] * 4])
    assert (frontend, whole.handle, whole.start) == (b"front", 10, START)
    assert whole.logprobs.chosen.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert choices[0].prompt_parts is None, "no more are wanted"
    [(_, other)] = read_back(table, step_of(table, choices, [0, 1]), [[7.0]])
    assert other.logprobs.chosen.tolist() == [6.0, 6.0, 6.0, 6.0, 7.0]


def test_what_was_planned_for_an_earlier_life_is_passed_over() -> None:
    table = RowTable(1, 64)
    choice = admitted(table, 10)
    plan = step_of(table, [choice], [2])
    table.vacate(0)  # it is preempted and admitted again while the step is in flight
    table.claim(choice, 0, len(PROMPT), is_pinned=False)
    assert read_back(table, plan, [[1.0, 2.0]]) == []
    assert choice.prompt_parts == []


def spanning(table: RowTable, choice: Choice, start: int, count: int) -> StepPlan:
    """A step that computes `count` tokens from position `start` and reports all it can of them."""
    plan = step_of(table, [choice], [count])
    plan.starts = np.array([start], dtype=np.int32)
    first = max(START - 1 - start, 0)
    plan.spans = [PromptSpan(0, first, count, choice)]
    return plan


def test_parts_are_sent_as_they_come_and_none_twice() -> None:
    """Positions 2 to 6 are wanted; the choice is preempted after positions 2 and 3 were sent."""
    table = RowTable(1, 64)
    choice = admitted(table, 10, by_part=True)
    [(_, first)] = read_back(table, spanning(table, choice, 0, 3), [[2.0, 3.0]])
    assert (first.start, first.logprobs.chosen.tolist(), first.is_part) == (2, [2.0, 3.0], True)
    table.vacate(0)
    choice.prompt_parts = []
    table.claim(choice, 0, len(PROMPT), is_pinned=False)
    assert read_back(table, spanning(table, choice, 0, 2), [[2.0]]) == [], "it was sent"
    [(_, second)] = read_back(table, spanning(table, choice, 2, 3), [[3.0, 4.0, 5.0]])
    assert (second.start, second.logprobs.chosen.tolist()) == (4, [4.0, 5.0])
    [(_, last)] = read_back(table, spanning(table, choice, 5, 1), [[6.0]])
    assert (last.start, last.logprobs.chosen.tolist()) == (6, [6.0])
    assert choice.prompt_parts is None, "no more are wanted"
