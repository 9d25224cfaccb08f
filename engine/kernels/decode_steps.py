# mypy: allow-untyped-defs, allow-incomplete-defs
"""A decode step's two ends on the device: inputs gathered from rows, drawn tokens entered.

Each is one kernel with fixed addresses, so that a graph can hold it. Padding is rows equal to the
scratch row: they read token 0 at position 0, write to the null block and stay as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from sampling.triton_support import jit, tl


class RowState(NamedTuple):
    """The device state of rows; see `engine.batch.RequestRows`.

    Attributes:
        token_ids: int32 [max_rows + 1, max_len]; the last row is scratch.
        num_computed: int64 [max_rows + 1].
        block_tables: int32 [max_rows + 1, max_blocks].
    """

    token_ids: torch.Tensor
    num_computed: torch.Tensor
    block_tables: torch.Tensor


class DecodeInputs(NamedTuple):
    """What one kernel writes for S rows of one query token; fields as in `InputBatch`.

    Attributes:
        positions: int64 [S]. draw_positions: int64 [S], positions + 1.
        input_ids, seq_lens: int32 [S]. slots: int64 [S].
        block_tables: int32 [S, max_blocks].
    """

    positions: torch.Tensor
    draw_positions: torch.Tensor
    input_ids: torch.Tensor
    seq_lens: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor

    @classmethod
    def empty(cls, size: int, max_blocks: int, device: torch.device) -> DecodeInputs:
        def vector(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        return cls(
            positions=vector(torch.int64),
            draw_positions=vector(torch.int64),
            input_ids=vector(torch.int32),
            seq_lens=vector(torch.int32),
            slots=vector(torch.int64),
            block_tables=torch.zeros((size, max_blocks), dtype=torch.int32, device=device),
        )


@jit
def _gather_kernel(
    rows_ptr,
    state,
    inputs,
    max_len,
    max_blocks,
    scratch_row,
    block_size: tl.constexpr,
    BLOCK: tl.constexpr,  # noqa: N803
):
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + i)
    position = tl.load(state.num_computed + row)
    position = tl.where(row == scratch_row, 0, position)
    table = state.block_tables + row * max_blocks
    block_id = tl.load(table + position // block_size).to(tl.int64)
    tl.store(inputs.positions + i, position)
    tl.store(inputs.draw_positions + i, position + 1)
    tl.store(inputs.input_ids + i, tl.load(state.token_ids + row * max_len + position))
    tl.store(inputs.seq_lens + i, (position + 1).to(tl.int32))
    tl.store(inputs.slots + i, block_id * block_size + position % block_size)
    for start in range(0, position // block_size + 1, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < max_blocks
        ids = tl.load(table + columns, mask=inside, other=0)
        tl.store(inputs.block_tables + i * max_blocks + columns, ids, mask=inside)


def gather_decode_inputs(
    rows: torch.Tensor, state: RowState, inputs: DecodeInputs, block_size: int
) -> None:
    """Fill `inputs` for rows int64 [S]; table entries past a row's length are left as they are."""
    num_rows, max_len = state.token_ids.shape
    _gather_kernel[(len(rows),)](
        rows,
        state,
        inputs,
        max_len,
        state.block_tables.shape[1],
        num_rows - 1,
        block_size=block_size,
        BLOCK=256,
        num_warps=1,
    )


@jit
def _enter_kernel(rows_ptr, drawn_ptr, state, max_len, scratch_row):
    i = tl.program_id(0)
    row = tl.load(rows_ptr + i)
    if row != scratch_row:
        position = tl.load(state.num_computed + row) + 1
        tl.store(state.token_ids + row * max_len + position, tl.load(drawn_ptr + i))
        tl.store(state.num_computed + row, position)


def enter_decoded(rows: torch.Tensor, token_ids: torch.Tensor, state: RowState) -> None:
    """Append drawn tokens int32 [S] to rows int64 [S] and count their inputs as computed."""
    num_rows, max_len = state.token_ids.shape
    _enter_kernel[(len(rows),)](rows, token_ids, state, max_len, num_rows - 1, num_warps=1)
