from __future__ import annotations

import pytest
import torch

from engine.kernels.step_io import (
    DecodeInputs,
    RowState,
    enter_decoded,
    enter_verified,
    gather_decode_inputs,
)
from tests.engine.kernels.where import DEVICES

MAX_ROWS, MAX_LEN, BLOCK_SIZE = 5, 1200, 4
SCRATCH = MAX_ROWS


def state_on(device: str, num_drafts: int) -> RowState:
    torch.manual_seed(0)
    tables = torch.randint(1, 1000, (MAX_ROWS + 1, MAX_LEN // BLOCK_SIZE), dtype=torch.int32)
    tables[SCRATCH] = 0
    drafts = torch.randint(-1, 99, (MAX_ROWS + 1, num_drafts), dtype=torch.int32)
    return RowState(
        token_ids=torch.randint(0, 99, (MAX_ROWS + 1, MAX_LEN), dtype=torch.int32).to(device),
        num_computed=torch.tensor([0, 3, 4, 1100, 17, 0]).to(device),
        limits=torch.tensor([9, 6, 5, 1104, 40, 0]).to(device),
        drafts=drafts.to(device),
        block_tables=tables.to(device),
    )


def inputs_of(
    rows: list[int], state: RowState, device: str, num_drafts: int | None = None
) -> DecodeInputs:
    """Of a step with so many drafts; None: all of them."""
    num_drafts = state.drafts.shape[1] if num_drafts is None else num_drafts
    inputs = DecodeInputs.empty(
        len(rows), num_drafts, state.block_tables.shape[1], torch.device(device)
    )
    gather_decode_inputs(torch.tensor(rows, device=device), state, inputs, BLOCK_SIZE)
    return inputs


@pytest.mark.parametrize(("num_drafts", "most"), [(0, 0), (3, 3), (2, 5)])
@pytest.mark.parametrize("device", DEVICES)
def test_inputs_are_those_of_the_rows(device: str, num_drafts: int, most: int) -> None:
    state, rows = state_on(device, most), [3, 0, 2, SCRATCH, SCRATCH]
    inputs = inputs_of(rows, state, device, num_drafts)
    for i, row in enumerate(rows):
        start, table = int(state.num_computed[row]), state.block_tables[row]
        assert torch.equal(inputs.draft_ids[i], state.drafts[row, :num_drafts])
        assert int(inputs.seq_lens[i]) == start + 1 + num_drafts
        assert int(inputs.room[i]) == max(int(state.limits[row]) - start - 1, 1)
        for depth in range(1 + num_drafts):
            at, position = i * (1 + num_drafts) + depth, start + depth
            block, offset = divmod(position, BLOCK_SIZE)
            assert int(inputs.token_rows[at]) == row
            assert int(inputs.positions[at]) == position
            assert int(inputs.draw_positions[at]) == position + 1
            assert int(inputs.input_ids[at]) == int(state.token_ids[row, position])
            assert int(inputs.slots[at]) == int(table[block]) * BLOCK_SIZE + offset
            if depth:
                draft = int(state.drafts[row, depth - 1])
                assert int(state.token_ids[row, position]) == max(draft, 0)
        reach = (start + num_drafts + most + 1) // BLOCK_SIZE + 1
        assert torch.equal(inputs.block_tables[i, :reach], table[:reach])


@pytest.mark.parametrize("device", DEVICES)
def test_drawn_tokens_enter_their_rows_only(device: str) -> None:
    state = state_on(device, 0)
    before = RowState(*(tensor.clone() for tensor in state))
    rows = torch.tensor([4, 1, SCRATCH], device=device)
    enter_decoded(rows, torch.tensor([200, 201, 202], dtype=torch.int32, device=device), state)
    before.token_ids[4, 18], before.token_ids[1, 4] = 200, 201
    before.num_computed[4], before.num_computed[1] = 18, 4
    for got, wanted in zip(state, before, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_verified_tokens_enter_their_rows_only(device: str) -> None:
    state, rows = state_on(device, 2), [4, 1, 2, SCRATCH]
    state.drafts[4], state.drafts[1] = torch.tensor([[7, -1], [8, 9]], device=device)
    inputs = inputs_of(rows, state, device)
    before = RowState(*(tensor.clone() for tensor in state))
    tokens = torch.arange(200, 212, dtype=torch.int32, device=device).view(4, 3)
    num_new = torch.tensor([3, 1, 0, 2], dtype=torch.int32, device=device)  # row 2 is bad
    ids = torch.tensor(rows, device=device)
    entered = enter_verified(ids, tokens, num_new, inputs, state)
    before.token_ids[4, 18:21] = tokens[0]
    before.token_ids[1, 4] = 203
    before.num_computed[4], before.num_computed[1] = 20, 4
    for got, wanted in zip(state, before, strict=True):
        assert torch.equal(got, wanted)
    assert entered.last.tolist()[:3] == [2, 3, 6]
    assert entered.positions.tolist()[:3] == [21, 5, 6]
    assert entered.limits.tolist()[:3] == [40, 6, 5]
    assert entered.num_offered.tolist()[:2] == [1, 2]
