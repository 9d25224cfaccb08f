from __future__ import annotations

import pytest
import torch

from engine.kernels.decode_steps import (
    DecodeInputs,
    RowState,
    enter_decoded,
    gather_decode_inputs,
)
from tests.engine.kernels.where import DEVICES

MAX_ROWS, MAX_LEN, BLOCK_SIZE = 5, 1200, 4
SCRATCH = MAX_ROWS


def state_on(device: str) -> RowState:
    torch.manual_seed(0)
    tables = torch.randint(1, 1000, (MAX_ROWS + 1, MAX_LEN // BLOCK_SIZE), dtype=torch.int32)
    tables[SCRATCH] = 0
    return RowState(
        token_ids=torch.randint(0, 99, (MAX_ROWS + 1, MAX_LEN), dtype=torch.int32).to(device),
        num_computed=torch.tensor([0, 3, 4, 1100, 17, 0]).to(device),
        block_tables=tables.to(device),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_are_those_of_the_rows(device: str) -> None:
    state, rows = state_on(device), [3, 0, 2, SCRATCH, SCRATCH]
    inputs = DecodeInputs.empty(len(rows), state.block_tables.shape[1], torch.device(device))
    gather_decode_inputs(torch.tensor(rows, device=device), state, inputs, BLOCK_SIZE)
    for i, row in enumerate(rows):
        position = int(state.num_computed[row])
        block, offset = divmod(position, BLOCK_SIZE)
        table = state.block_tables[row]
        assert int(inputs.positions[i]) == position
        assert int(inputs.draw_positions[i]) == position + 1
        assert int(inputs.input_ids[i]) == int(state.token_ids[row, position])
        assert int(inputs.seq_lens[i]) == position + 1
        assert int(inputs.slots[i]) == int(table[block]) * BLOCK_SIZE + offset
        assert torch.equal(inputs.block_tables[i, : block + 1], table[: block + 1])


@pytest.mark.parametrize("device", DEVICES)
def test_drawn_tokens_enter_their_rows_only(device: str) -> None:
    state = state_on(device)
    before = RowState(*(tensor.clone() for tensor in state))
    rows = torch.tensor([4, 1, SCRATCH], device=device)
    enter_decoded(rows, torch.tensor([200, 201, 202], dtype=torch.int32, device=device), state)
    before.token_ids[4, 18], before.token_ids[1, 4] = 200, 201
    before.num_computed[4], before.num_computed[1] = 18, 4
    for got, wanted in zip(state, before, strict=True):
        assert torch.equal(got, wanted)
