"""Joins the logprobs of prompts, which are read back span by span. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from engine.arrays import LogprobArrays
from engine.contracts.runner import StepResult
from engine.messages.step_output import PromptLogprobs
from engine.plan import StepPlan
from engine.rows import Choice, RowTable


def join_prompt_parts(
    table: RowTable, plan: StepPlan, result: StepResult
) -> Iterator[tuple[bytes, PromptLogprobs]]:
    """Keep what a step reported of prompts, and yield what is to be sent, by frontend: a prompt's
    values once they are complete, or each part of them where parts are wanted.

    Spans of rows vacated since the step was planned are passed over: a preempted choice computes
    its prompt, and reports it, from the start.
    """
    live = table.epoch[plan.rows] == plan.epochs
    for span, part in zip(plan.spans, result.prompt_logprobs, strict=True):
        choice = span.choice
        wanted = choice.request.prompt_logprobs
        if not live[span.row_idx] or choice.prompt_parts is None or wanted is None:
            continue
        if wanted.by_part:
            first = int(plan.starts[span.row_idx]) + span.first + 1
            found = _new_part(choice, wanted.start, first, part)
        else:
            found = _whole(choice, wanted.start, part)
        if found is not None:
            yield choice.frontend, found


def _whole(choice: Choice, start: int, part: LogprobArrays) -> PromptLogprobs | None:
    """All that is wanted of a prompt, once this part completes it."""
    assert choice.prompt_parts is not None
    choice.prompt_parts.append(part)
    if sum(len(each.chosen) for each in choice.prompt_parts) < choice.prompt_len - start:
        return None
    whole = LogprobArrays.concat(choice.prompt_parts)
    choice.prompt_parts = None
    return PromptLogprobs(handle=choice.request.handle, start=start, logprobs=whole)


def _new_part(choice: Choice, start: int, first: int, part: LogprobArrays) -> PromptLogprobs | None:
    """What a part from position `first` on reports that was not reported before a preemption."""
    known = start + choice.num_prompt_reported - first
    end = first + len(part.chosen)
    if end == choice.prompt_len:
        choice.prompt_parts = None
    if known >= len(part.chosen):
        return None
    choice.num_prompt_reported = end - start
    return PromptLogprobs(
        handle=choice.request.handle,
        start=first + known,
        logprobs=part.at(slice(known, None)),
        is_part=True,
    )
