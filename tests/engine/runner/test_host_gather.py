"""A step's inputs in numpy against those in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine.batch import RequestRows, StepInputs
from engine.plan import StepPlan
from engine.runner.gather import gather_inputs
from engine.runner.host_gather import gather_on_host, serves
from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from tests.engine.choices import choice

NUM_ROWS, BLOCK_SIZE, MAX_LEN, VOCAB = 6, 4, 30, 50


def made(num_drafts: int = 0) -> tuple[RequestRows, SamplingRows]:
    """Rows of random histories, of lengths on both sides of a block's end."""
    rows = RequestRows(NUM_ROWS, MAX_LEN, BLOCK_SIZE, torch.device("cpu"), num_drafts=num_drafts)
    rows.token_ids.copy_(torch.randint(VOCAB, rows.token_ids.shape))
    rows.block_tables.copy_(torch.randperm(rows.block_tables.numel()).view_as(rows.block_tables))
    rows.block_tables_np[:] = rows.block_tables.numpy()
    rows.num_computed.copy_(torch.tensor([3, 4, 28, 1, 0, 7, 0]))
    sampling = SamplingRows(NUM_ROWS, VOCAB, rows.device, history=rows.token_ids)
    for row in range(NUM_ROWS):
        params = SamplingParams(temperature=0.5 * (row % 2))
        sampling.add(row, params, seed=row, choice=0, prompt_len=1, num_tokens=1)
    sampling.flush()
    return rows, sampling


def decoding(rows: list[int], state: RequestRows) -> StepPlan:
    blocks = np.zeros((len(rows), 1), dtype=np.int64)
    plan = StepPlan.of_new_rows([choice([1]) for _ in rows], 1, MAX_LEN, blocks)
    plan.rows = np.array(rows, dtype=np.int32)
    plan.starts = state.num_computed.numpy()[rows].astype(np.int32)
    return plan


def flat(inputs: StepInputs) -> dict[str, Any]:
    """The inputs by name, all but who writes tokens."""
    attention, sampling = vars(inputs.attention), inputs.sampling
    named = dict(attention)
    if sampling is not None:
        named |= {name: getattr(sampling, name) for name in sampling.__slots__}
    return named | {
        "step_rows": inputs.rows,
        "input_ids": inputs.input_ids,
        "token_positions": inputs.positions,
        "logit_tokens": torch.arange(len(inputs.input_ids))[inputs.logit_tokens],
    }


STEPS = {
    "one row decodes": ([0], [1], [True]),
    "rows decode": ([5, 4, 3, 2, 1, 0], [1] * 6, [True] * 6),
    "a prompt": ([4], [7], [True]),
    "part of a prompt": ([1], [9], [False]),
    "a mixture": ([2, 0, 5, 1], [1, 1, 12, 5], [True, False, True, False]),
}
"""The rows of steps, the tokens that each computes, and whether it draws."""


@pytest.fixture(params=STEPS)
def plan_of(request: pytest.FixtureRequest) -> Callable[[RequestRows], StepPlan]:
    rows, counts, draws = STEPS[request.param]

    def plan(state: RequestRows) -> StepPlan:
        step = decoding(rows, state)
        step.num_query, step.samples = np.array(counts, dtype=np.int32), np.array(draws)
        return step

    return plan


def test_inputs_are_those_of_any_step(plan_of: Callable[[RequestRows], StepPlan]) -> None:
    state, sampling_rows = made()
    plan = plan_of(state)
    theirs, ours = (
        flat(gather(plan, state, sampling_rows)) for gather in (gather_inputs, gather_on_host)
    )
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == theirs[name].dtype, name
            assert torch.equal(value, theirs[name]), name
        else:
            assert np.array_equal(value, theirs[name]), name


def test_tokens_enter_their_rows_as_those_of_any_step(
    plan_of: Callable[[RequestRows], StepPlan],
) -> None:
    state, sampling_rows = made()
    other, _ = made()
    for name in ("token_ids", "num_computed", "block_tables"):
        getattr(other, name).copy_(getattr(state, name))
    plan = plan_of(state)
    drawn = torch.tensor([[7], [8], [9], [6], [5], [4]], dtype=torch.int32)
    token_ids = drawn[: plan.samples.sum()] if plan.samples.any() else None
    gather_on_host(plan, state, sampling_rows).row_writer.enter(token_ids, None)
    gather_inputs(plan, other, sampling_rows).row_writer.enter(token_ids, None)
    assert torch.equal(state.token_ids, other.token_ids)
    assert torch.equal(state.num_computed, other.num_computed)


def test_a_row_that_draws_ends_before_its_last_token_until_then(
    plan_of: Callable[[RequestRows], StepPlan],
) -> None:
    """As a decode step does, whose graph enters tokens after a step of any shape."""
    state, sampling_rows = made()
    plan = plan_of(state)
    gather_on_host(plan, state, sampling_rows)
    wanted = plan.starts + plan.num_query - plan.samples
    assert state.num_computed[plan.rows.tolist()].tolist() == wanted.tolist()


def test_rows_with_drafts_are_left_to_the_general_gather() -> None:
    assert not serves(made(num_drafts=2)[0])
    assert serves(made()[0])
