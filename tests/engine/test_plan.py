"""A step's plan: what follows from its arrays, and how its end is shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from engine.contracts.runner import RunnerLostError, StepFailedError, result_of
from engine.messages.request import PromptLogprobsParams, Request
from engine.plan import PromptSpan, StepPlan, prompt_spans
from engine.rows import Choice
from sampling.params import SamplingParams


def choice(prompt_len: int = 10, start: int | None = None) -> Choice:
    """A choice that wants prompt logprobs from `start` on, if any."""
    prompt = np.zeros(prompt_len, dtype=np.int32)
    wanted = None if start is None else PromptLogprobsParams(start=start)
    request = Request(
        handle=1,
        prompt_token_ids=prompt,
        params=SamplingParams(),
        max_tokens=9,
        prompt_logprobs=wanted,
    )
    return Choice(b"", request, 0, 0, 1, prompt, prompt_parts=None if start is None else [])


def plan(
    starts: list[int],
    num_query: list[int],
    samples: list[bool],
    *,
    choices: list[Choice] | None = None,
    decodes: list[bool] | None = None,
    num_drafts: int = 0,
    num_proposed: int = 0,
) -> StepPlan:
    count = len(starts)
    return StepPlan(
        rows=np.arange(count, dtype=np.int32),
        num_query=np.array(num_query, dtype=np.int32),
        starts=np.array(starts, dtype=np.int32),
        samples=np.array(samples, dtype=np.bool_),
        epochs=np.zeros(count, dtype=np.int64),
        choices=choices or [choice() for _ in starts],
        num_prompt_tokens=0,
        num_drafts=num_drafts,
        num_proposed=num_proposed,
        decodes=np.array(decodes or samples, dtype=np.bool_),
        proposes=np.zeros(count, dtype=np.bool_),
        constrained=np.zeros(count, dtype=np.bool_),
    )


def test_a_logit_row_for_each_token_drawn_behind() -> None:
    step = plan(
        [20, 0, 0], [4, 5, 5], [True, True, False], decodes=[True, False, False], num_drafts=3
    )
    assert step.num_logits.tolist() == [4, 1, 0]
    assert step.max_seq_len == 24


def test_a_decode_step_is_one_token_a_row_and_nothing_else() -> None:
    assert plan([5, 9], [1, 1], [True, True]).is_decode
    assert not plan([5, 0], [1, 2], [True, True]).is_decode, "a prompt"
    assert not plan([5, 0], [1, 1], [True, False]).is_decode, "a chunk of one token"
    assert not plan([5, 9], [1, 1], [True, True], num_proposed=2).is_decode
    scored = plan([5], [1], [True])
    scored.spans = [PromptSpan(0, 0, 1, scored.choices[0])]
    assert not scored.is_decode


def test_with_drafts_a_decode_step_has_decoding_rows_alone() -> None:
    assert plan([5, 9], [3, 3], [True, True], num_drafts=2).is_decode
    mixed = plan([5, 0], [3, 4], [True, True], decodes=[True, False], num_drafts=2)
    assert not mixed.is_decode


@pytest.mark.parametrize(
    ("start", "chunk", "wanted", "span"),
    [
        (0, 10, 1, (0, 9)),  # the whole prompt: nothing of it follows its last token
        (0, 4, 1, (0, 4)),  # a chunk: the next chunk's first token follows
        (4, 4, 1, (0, 4)),
        (8, 2, 1, (0, 1)),
        (0, 10, 4, (3, 9)),  # from position 4 on, which follows token 3
        (2, 8, 4, (1, 7)),
        (0, 3, 4, None),  # the chunk ends before token 3
        (0, 4, 4, (3, 4)),
        (9, 1, 1, None),  # the last token alone
        (9, 5, 1, None),  # tokens generated before a preemption follow
        (6, 8, 1, (0, 3)),
    ],
)
def test_spans_of_a_chunk(
    start: int, chunk: int, wanted: int, span: tuple[int, int] | None
) -> None:
    step = plan([0, start], [1, chunk], [False, False], choices=[choice(), choice(start=wanted)])
    found = prompt_spans(step, np.array([0, 1]))
    expected = [] if span is None else [PromptSpan(1, *span, step.choices[1])]
    assert found == expected


def test_no_span_once_the_logprobs_were_reported() -> None:
    reported = choice(start=1)
    reported.prompt_parts = None
    assert prompt_spans(plan([0], [4], [False], choices=[reported]), np.array([0])) == []


@dataclass
class Step:
    outcome: int | Exception

    def wait(self) -> int:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_the_result_of_a_step_is_waited_for() -> None:
    assert result_of(Step(7)) == 7


def test_what_no_step_survives_is_passed_on() -> None:
    with pytest.raises(RunnerLostError):
        result_of(Step(RunnerLostError("gone")))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("too much\nof it"), "MemoryError: too much"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_step_that_raised_is_told_in_one_line(error: Exception, message: str) -> None:
    with pytest.raises(StepFailedError) as caught:
        result_of(Step(error))
    assert str(caught.value) == message
    assert caught.value.__cause__ is error
