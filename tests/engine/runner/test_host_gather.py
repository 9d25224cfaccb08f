"""A decode step's inputs in numpy against those of any step in torch."""

from __future__ import annotations

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
from tests.engine.test_rows import choice

NUM_ROWS, BLOCK_SIZE, MAX_LEN, VOCAB = 6, 4, 30, 50


def made(num_drafts: int = 0) -> tuple[RequestRows, SamplingRows]:
    """Rows of random histories, of lengths on both sides of a block's end."""
    rows = RequestRows(NUM_ROWS, MAX_LEN, BLOCK_SIZE, torch.device("cpu"), num_drafts=num_drafts)
    rows.token_ids.copy_(torch.randint(VOCAB, rows.token_ids.shape))
    rows.block_tables.copy_(torch.randperm(rows.block_tables.numel()).view_as(rows.block_tables))
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
    assert sampling is not None
    named = attention | {name: getattr(sampling, name) for name in sampling.__slots__}
    return named | {
        "step_rows": inputs.rows,
        "input_ids": inputs.input_ids,
        "token_positions": inputs.positions,
        "logit_tokens": torch.arange(len(inputs.input_ids))[inputs.logit_tokens],
    }


@pytest.mark.parametrize("rows", [[0], [4], [2, 0, 5, 1], [5, 4, 3, 2, 1, 0]])
def test_inputs_are_those_of_any_step(rows: list[int]) -> None:
    state, sampling_rows = made()
    plan = decoding(rows, state)
    assert serves(plan, state)
    ours, theirs = (
        flat(gather(plan, state, sampling_rows)) for gather in (gather_on_host, gather_inputs)
    )
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == theirs[name].dtype, name
            assert torch.equal(value, theirs[name]), name
        else:
            assert np.array_equal(value, theirs[name]), name


def test_tokens_enter_their_rows_as_those_of_any_step() -> None:
    state, sampling_rows = made()
    other = RequestRows(NUM_ROWS, MAX_LEN, BLOCK_SIZE, state.device)
    for name in ("token_ids", "num_computed", "block_tables"):
        getattr(other, name).copy_(getattr(state, name))
    plan = decoding([2, 0, 5], state)
    token_ids = torch.tensor([[7], [8], [9]], dtype=torch.int32)
    gather_on_host(plan, state, sampling_rows).row_writer.enter(token_ids, None)
    gather_inputs(plan, other, sampling_rows).row_writer.enter(token_ids, None)
    assert torch.equal(state.token_ids, other.token_ids)
    assert torch.equal(state.num_computed, other.num_computed)


def test_other_steps_are_left_to_the_general_gather() -> None:
    state, _ = made(num_drafts=2)
    prompt = decoding([0, 1], state)
    prompt.num_query = np.array([2, 1], dtype=np.int32)
    silent = decoding([0, 1], state)
    silent.samples = np.array([True, False])
    drafting = decoding([0, 1], state)
    drafting.num_drafts = 2
    followed = decoding([0, 1], state)
    followed.runs_drafter = True
    for plan in (prompt, silent, drafting, followed):
        assert not serves(plan, state)
