"""Plans as they are sent are the plans that were made, as far as a runner reads them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from engine.contracts.scoring import PlanStates, ScoringPlan
from engine.contracts.shared_blocks import Sharing
from engine.messages.request import PromptLogprobsParams, Request
from engine.parallel.messages import PlanReader, Score, decode, draw_of, encode, launch_of
from engine.plan import BlockGrant, PromptSpan, StepMasks, StepPlan
from engine.rows import Choice
from sampling.params import SamplingParams


def choice(handle: int, **wishes: Any) -> Choice:
    prompt = np.arange(1, 6, dtype=np.int32)
    request = Request(
        handle=handle,
        prompt_token_ids=prompt,
        params=SamplingParams(**wishes),
        max_tokens=4,
        prompt_logprobs=PromptLogprobsParams(num_top=2),
    )
    tokens = np.arange(1, 8, dtype=np.int32)  # two of them generated before a preemption
    return Choice(b"front", request, 1, -(2**62), 9, tokens, prompt_parts=[])


def new_rows(*choices: Choice) -> StepPlan:
    blocks = np.arange(1, 1 + len(choices)).reshape(-1, 1)
    return StepPlan.of_new_rows(list(choices), 5, 20, blocks)


def reported(plan: StepPlan, reader: PlanReader) -> StepPlan:
    message: Any = decode(encode(launch_of(plan)))
    return reader.plan(message)


def assert_alike(mine: Any, theirs: Any) -> None:
    """Assert that all is equal but what a runner does not read of a choice."""
    if isinstance(mine, np.ndarray):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)
        assert mine.flags.writeable, "torch takes only arrays it may write to"
    elif isinstance(mine, Choice):
        assert (mine.index, mine.seed, mine.prompt_len) == (
            theirs.index,
            theirs.seed,
            theirs.prompt_len,
        )
        assert mine.request.params == theirs.request.params
        assert mine.request.prompt_logprobs == theirs.request.prompt_logprobs
        assert np.array_equal(mine.token_ids, theirs.token_ids)
    elif isinstance(mine, list):
        for a, b in zip(mine, theirs, strict=True):
            assert_alike(a, b)
    elif isinstance(mine, Sharing):
        assert_alike(list(mine), list(theirs))
    elif hasattr(mine, "__dataclass_fields__"):
        for each in fields(mine):
            assert_alike(getattr(mine, each.name), getattr(theirs, each.name))
    else:
        assert mine == theirs


def test_plans_are_told_whole() -> None:
    plan = new_rows(choice(3, temperature=0.5, logit_bias={7: 1.5}), choice(4, bad_words=((1, 2),)))
    plan.released = [5, 6]
    plan.undrafted = [1]
    plan.grants.append(BlockGrant(1, 1, [40, 41]))
    assert plan.spans, "the prompts' logprobs are wanted"
    assert_alike(reported(plan, PlanReader()), plan)


def test_rows_keep_their_choices_until_others_come() -> None:
    reader, first, second = PlanReader(), choice(1, seed=1), choice(2, seed=2)
    reported(new_rows(first, second), reader)
    plan = new_rows(first, second)
    plan.admissions, plan.grants = [], []
    plan.spans = [PromptSpan(1, 0, 2, second)]
    assert_alike(reported(plan, reader), plan)
    reported(new_rows(other := choice(3, seed=3)), reader)
    plan.choices = [other, second]
    assert_alike(reported(plan, reader), plan)


def test_masks_are_told_as_far_as_they_are_used() -> None:
    buffer = np.arange(12, dtype=np.int32).reshape(4, 3)
    slots = np.array([1, -1, 0], dtype=np.int32)
    message: Any = decode(encode(draw_of(StepMasks(2, slots), buffer)))
    assert_alike(message.masks, buffer[:2])
    assert_alike(message.slots, slots)


def test_steps_of_scoring_are_told_whole() -> None:
    plan = ScoringPlan(
        token_ids=np.arange(3, dtype=np.int32),
        positions=np.arange(3, dtype=np.int64),
        query_starts=np.array([0, 3], dtype=np.int32),
        seq_lens=np.array([3], dtype=np.int32),
        block_tables=np.ones((1, 2), dtype=np.int32),
        slots=np.arange(3, dtype=np.int64),
        sharing=Sharing(np.array([0, 1]), np.array([1], dtype=np.int32)),
        read_tokens=np.array([2]),
        embed_tokens=np.arange(1),
        id_lists=np.array([[1, -1]], dtype=np.int32),
        states=PlanStates(*(np.full(1, i, dtype=np.int32) for i in (2, 3, 0))),
    )
    message: Any = decode(encode(Score(plan)))
    assert_alike(message.plan, plan)
