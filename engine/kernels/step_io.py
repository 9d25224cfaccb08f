# mypy: allow-untyped-defs, allow-incomplete-defs
"""Kernels at the two ends of a decode step: gather inputs from rows, enter tokens into them.

Each is one kernel at fixed addresses, so that a graph can hold it. Padding is rows equal to the
scratch row: they read token 0 at position 0, write to the null block and do not change.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from sampling.device.triton_support import jit, tl


class RowState(NamedTuple):
    """The tensors of `engine.batch.RequestRows`; one kernel argument.

    Attributes:
        token_ids: int32 [max_rows + 1, width]; the last row is scratch.
        num_computed, limits: int64 [max_rows + 1].
        drafts: int32 [max_rows + 1, k], of which a step verifies the first d.
        block_tables: int32 [max_rows + 1, max_blocks].
    """

    token_ids: torch.Tensor
    num_computed: torch.Tensor
    limits: torch.Tensor
    drafts: torch.Tensor
    block_tables: torch.Tensor


class DecodeInputs(NamedTuple):
    """A decode step's inputs at fixed addresses: S rows of Q = 1 + d query tokens.

    Attributes:
        positions: int64 [S * Q]. draw_positions: int64 [S * Q], positions + 1.
        token_rows: int32 [S * Q]. input_ids: int32 [S * Q]. slots: int64 [S * Q].
        seq_lens: int32 [S]. room: int32 [S], places left for tokens, at least 1.
        draft_ids: int32 [S, d], -1 where there is none.
        block_tables: int32 [S, max_blocks].
    """

    positions: torch.Tensor
    draw_positions: torch.Tensor
    token_rows: torch.Tensor
    input_ids: torch.Tensor
    slots: torch.Tensor
    seq_lens: torch.Tensor
    room: torch.Tensor
    draft_ids: torch.Tensor
    block_tables: torch.Tensor

    @classmethod
    def empty(
        cls, size: int, num_drafts: int, max_blocks: int, device: torch.device
    ) -> DecodeInputs:
        num_tokens = size * (1 + num_drafts)

        def buffer(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            positions=buffer(num_tokens, dtype=torch.int64),
            draw_positions=buffer(num_tokens, dtype=torch.int64),
            token_rows=buffer(num_tokens),
            input_ids=buffer(num_tokens),
            slots=buffer(num_tokens, dtype=torch.int64),
            seq_lens=buffer(size),
            room=buffer(size),
            draft_ids=buffer(size, num_drafts),
            block_tables=buffer(size, max_blocks),
        )

    def of_rows(self, size: int) -> DecodeInputs:
        """Views of the first `size` rows."""
        num_tokens = size * (1 + self.draft_ids.shape[1])
        per_token = (tensor[:num_tokens] for tensor in self[:5])
        return DecodeInputs(*per_token, *(tensor[:size] for tensor in self[5:]))


@jit
def _gather_kernel(
    rows_ptr,
    state,
    inputs,
    width,
    max_blocks,
    scratch_row,
    block_size: tl.constexpr,
    num_drafts: tl.constexpr,
    most_drafts: tl.constexpr,
    BLOCK: tl.constexpr,  # noqa: N803
):
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + i)
    start = tl.load(state.num_computed + row)
    start = tl.where(row == scratch_row, 0, start)
    table = state.block_tables + row * max_blocks
    history = state.token_ids + row * width
    for depth in tl.static_range(1 + num_drafts):
        at, position = i * (1 + num_drafts) + depth, start + depth
        if depth == 0:
            token = tl.load(history + position)
        else:
            draft = tl.load(state.drafts + row * most_drafts + depth - 1)
            tl.store(inputs.draft_ids + i * num_drafts + depth - 1, draft)
            token = tl.maximum(draft, 0)
            tl.store(history + position, token)
        block_id = tl.load(table + position // block_size).to(tl.int64)
        tl.store(inputs.positions + at, position)
        tl.store(inputs.draw_positions + at, position + 1)
        tl.store(inputs.token_rows + at, row.to(tl.int32))
        tl.store(inputs.input_ids + at, token)
        tl.store(inputs.slots + at, block_id * block_size + position % block_size)
    tl.store(inputs.seq_lens + i, (start + 1 + num_drafts).to(tl.int32))
    room = tl.load(state.limits + row) - start - 1
    tl.store(inputs.room + i, tl.maximum(room, 1).to(tl.int32))
    # As far as the drafter goes after the newest token.
    for first in range(0, (start + num_drafts + most_drafts + 1) // block_size + 1, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < max_blocks
        ids = tl.load(table + columns, mask=inside, other=0)
        tl.store(inputs.block_tables + i * max_blocks + columns, ids, mask=inside)


def gather_decode_inputs(
    rows: torch.Tensor, state: RowState, inputs: DecodeInputs, block_size: int
) -> None:
    """Fill `inputs` for rows int64 [S]; table entries past a row's reach are not written.

    The rows' drafts are put after their last tokens, where their histories hold them until they
    are verified.
    """
    num_rows, width = state.token_ids.shape
    _gather_kernel[(len(rows),)](
        rows,
        state,
        inputs,
        width,
        state.block_tables.shape[1],
        num_rows - 1,
        block_size=block_size,
        num_drafts=inputs.draft_ids.shape[1],
        most_drafts=state.drafts.shape[1],
        BLOCK=256,
        num_warps=1,
    )


@jit
def _enter_kernel(rows_ptr, drawn_ptr, state, width, scratch_row):
    i = tl.program_id(0)
    row = tl.load(rows_ptr + i)
    if row != scratch_row:
        position = tl.load(state.num_computed + row) + 1
        tl.store(state.token_ids + row * width + position, tl.load(drawn_ptr + i))
        tl.store(state.num_computed + row, position)


def enter_decoded(rows: torch.Tensor, token_ids: torch.Tensor, state: RowState) -> None:
    """Append drawn tokens int32 [S] to rows int64 [S] and count their inputs as computed."""
    num_rows, width = state.token_ids.shape
    _enter_kernel[(len(rows),)](rows, token_ids, state, width, num_rows - 1, num_warps=1)


class Entered(NamedTuple):
    """The ends of S rows after their verified tokens; see `engine.batch.RowEnds`.

    Attributes:
        last: int64 [S], the last of each row's query tokens that is kept, among all S * Q.
        positions: int64 [S], of the next step's first draft. limits: int64 [S], as in `RowState`.
        num_offered: int32 [S], drafts that were verified, as far as there was room.
    """

    last: torch.Tensor
    positions: torch.Tensor
    limits: torch.Tensor
    num_offered: torch.Tensor


@jit
def _enter_verified_kernel(
    rows_ptr,
    token_ids_ptr,
    num_new_ptr,
    inputs,
    state,
    entered,
    width,
    scratch_row,
    num_drafts: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + i)
    num_new = tl.load(num_new_ptr + i)
    start = tl.load(inputs.positions + i * (1 + num_drafts))
    offered = 0
    room = tl.load(inputs.room + i)
    for depth in tl.static_range(1 + num_drafts):
        token = tl.load(token_ids_ptr + i * (1 + num_drafts) + depth)
        if depth < num_drafts:
            is_draft = tl.load(inputs.draft_ids + i * num_drafts + depth) >= 0
            offered += (is_draft & (depth < room)).to(tl.int32)
        if (depth < num_new) & (row != scratch_row):
            tl.store(state.token_ids + row * width + start + 1 + depth, token)
    if row != scratch_row:
        tl.store(state.num_computed + row, start + num_new)
    tl.store(entered.last + i, i * (1 + num_drafts) + tl.maximum(num_new, 1) - 1)
    tl.store(entered.positions + i, start + tl.maximum(num_new, 1) + 1)
    tl.store(entered.limits + i, tl.load(state.limits + row))
    tl.store(entered.num_offered + i, offered)


def enter_verified(
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    num_new: torch.Tensor,
    inputs: DecodeInputs,
    state: RowState,
) -> Entered:
    """Append the first `num_new` int32 [S] of token_ids int32 [S, Q] to rows int64 [S].

    As many query tokens count as computed: what was refused is computed again.
    """
    size, num_drafts = inputs.draft_ids.shape
    last, positions, limits = torch.empty((3, size), dtype=torch.int64, device=rows.device)
    num_offered = torch.empty(size, dtype=torch.int32, device=rows.device)
    entered = Entered(last, positions, limits, num_offered)
    num_rows, width = state.token_ids.shape
    _enter_verified_kernel[(size,)](
        rows,
        token_ids,
        num_new,
        inputs,
        state,
        entered,
        width,
        num_rows - 1,
        num_drafts=num_drafts,
        num_warps=1,
    )
    return entered
