"""Device state of rows, and a step's inputs derived from it on the device.

`RequestRows` owns token history, lengths and block tables; one index is one row for as long as a
choice runs. `InputBatch` is views and gathers of it, made anew each step and never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.blocks import NULL_BLOCK
from engine.buffers import StagedWrites, to_device
from engine.contracts.attention import AttentionInputs
from engine.plan import StepPlan
from engine.request import Int32Array, Int64Array

ALIGNMENT = 16
"""Kernels are compiled for addresses and strides divisible by 16, and anew for others."""


class RequestRows:
    """Owner of what the device knows of each row.

    Histories and tables are wide enough for the drafts behind the last place of the context.

    Attributes:
        scratch_row: max_rows; no choice's, it pads decode steps to the size of a graph.
        token_ids: int32 [max_rows + 1, width], prompt then output, then drafts not verified yet.
        num_computed: int64 [max_rows + 1], tokens whose KV is in the cache once issued work is
            done.
        limits: int64 [max_rows + 1], first position a row's tokens may not reach.
        drafts: int32 [max_rows + 1, k], of each row's next step; -1 where there is none.
        block_tables: int32 [max_rows + 1, max_blocks], unused entries `NULL_BLOCK`.
    """

    def __init__(
        self,
        max_rows: int,
        max_len: int,
        block_size: int,
        device: torch.device,
        num_drafts: int = 0,
    ) -> None:
        self.device = device
        self.block_size = block_size
        self.scratch_row = max_rows
        # A step in flight behind a row's end may begin one position past it, and drafts twice k.
        width = max_len + (2 * num_drafts + 2 if num_drafts else 0)
        num_rows, max_blocks = max_rows + 1, -(-width // block_size)
        width = -(-width // ALIGNMENT) * ALIGNMENT
        self.token_ids = torch.zeros((num_rows, width), dtype=torch.int32, device=device)
        self.num_computed = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.limits = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.drafts = torch.full((num_rows, num_drafts), -1, dtype=torch.int32, device=device)
        self.block_tables = torch.zeros((num_rows, max_blocks), dtype=torch.int32, device=device)
        self._token_writes = StagedWrites(self.token_ids)
        self._length_writes = StagedWrites(self.num_computed)
        self._limit_writes = StagedWrites(self.limits)
        self._table_writes = StagedWrites(self.block_tables)

    def apply(self, plan: StepPlan) -> None:
        """Publish what changed since the last plan: rows vacated and admitted, blocks, gaps."""
        if plan.released:
            self.forget(np.array(plan.released))
        for admission in plan.admissions:
            self._token_writes.stage(admission.row, 0, admission.choice.token_ids)
            self._length_writes.stage(admission.row, 0, (admission.num_computed,))
            self._limit_writes.stage(admission.row, 0, (admission.limit,))
        for grant in plan.grants:
            self._table_writes.stage(grant.row, grant.start, grant.blocks)
        for writes in (
            self._token_writes,
            self._length_writes,
            self._limit_writes,
            self._table_writes,
        ):
            writes.flush()
        if plan.undrafted:
            self.drafts.index_fill_(0, to_device(np.array(plan.undrafted), self.device), -1)

    def forget(self, rows: npt.NDArray[np.integer[Any]]) -> None:
        """Empty the tables of vacated rows, so that nobody writes to blocks of others."""
        index = to_device(rows.astype(np.int64), self.device)
        self.block_tables.index_fill_(0, index, NULL_BLOCK)

    def tables_of(self, rows: torch.Tensor, max_seq_len: int) -> torch.Tensor:
        """Block tables of rows int64 [n], wide enough for a step and what is drafted behind it."""
        num_drafts = self.drafts.shape[1]
        reach = max_seq_len + (2 * num_drafts + 1 if num_drafts else 0)
        return self.block_tables[rows, : -(-reach // self.block_size)]

    def enter_drafts(self, rows: torch.Tensor) -> None:
        """Put the drafts of rows int64 [n] behind their last tokens, until they are verified."""
        num_drafts = self.drafts.shape[1]
        places = torch.arange(1, 1 + num_drafts, device=self.device)
        positions = self.num_computed[rows, None] + places
        self.token_ids[rows[:, None], positions] = self.drafts[rows].clamp(min=0)

    def enter(self, batch: InputBatch, token_ids: torch.Tensor) -> None:
        """Append drawn tokens int32 [L, W]; what does not stand will be overwritten."""
        first = batch.draw_positions[batch.logit_starts]
        positions = first[:, None] + torch.arange(token_ids.shape[1], device=self.device)
        self.token_ids[batch.draw_rows[:, None], positions] = token_ids

    def advance(self, batch: InputBatch, num_new: torch.Tensor | None) -> None:
        """Count the step's tokens as computed.

        Args:
            num_new: int32 [L], tokens that stand of decoding rows with drafts, which come first.
        """
        computed = batch.num_query
        if num_new is not None:
            computed = computed.clone()
            computed[: batch.num_decodes] = num_new[: batch.num_decodes].to(computed.dtype)
        self.num_computed[batch.rows] += computed


@dataclass(frozen=True)
class InputBatch:
    """One step's inputs: R rows, T tokens; L rows draw from N logit rows.

    Attributes:
        rows: int64 [R]. num_query: int64 [R]. num_decodes: rows, the first, that decode.
        input_ids: int32 [T]. positions: int64 [T]. token_rows: int64 [T], the row of each token.
        draw_rows: int64 [L], rows that draw. logit_starts: int64 [L], their first logit rows.
        logit_tokens: int64 [N], tokens whose hidden state goes through the head.
        logit_rows: int64 [N], the row that draws from each logit row; logit_rows_np: int32.
        depths: int32 [N], drafts before the token to be drawn.
        draw_positions: int64 [N], absolute position of the token to be drawn.
        attention: lengths and tables.
    """

    rows: torch.Tensor
    num_query: torch.Tensor
    num_decodes: int
    input_ids: torch.Tensor
    positions: torch.Tensor
    token_rows: torch.Tensor
    draw_rows: torch.Tensor
    logit_starts: torch.Tensor
    logit_tokens: torch.Tensor
    logit_rows: torch.Tensor
    logit_rows_np: Int32Array
    depths: torch.Tensor
    draw_positions: torch.Tensor
    attention: AttentionInputs


def make_batch(plan: StepPlan, state: RequestRows) -> InputBatch:
    """Gather a step's inputs from the rows; one small copy to the device, no wait."""
    num_rows, num_tokens = len(plan.rows), int(plan.num_query.sum())
    starts_np = np.zeros(num_rows + 1, dtype=np.int32)
    np.cumsum(plan.num_query, out=starts_np[1:])
    logits = _LogitRows.of(plan, starts_np)
    rows, num_query, starts, draw_rows, logit_starts, logit_tokens, logit_rows, depths = _split(
        [plan.rows, plan.num_query, starts_np, *logits], state.device
    )
    num_decodes = int(plan.decodes.sum()) if plan.num_drafts else 0
    if num_decodes:
        state.enter_drafts(rows[:num_decodes])

    num_computed = state.num_computed[rows]
    tables = state.tables_of(rows, plan.max_seq_len)
    if num_tokens == num_rows:  # every row brings one token
        token_idx, positions = torch.arange(num_rows, device=state.device), num_computed
    else:
        row_ids = torch.arange(num_rows, device=state.device)
        token_idx = torch.repeat_interleave(row_ids, num_query, output_size=num_tokens)
        offsets = torch.arange(num_tokens, device=state.device) - starts[token_idx]
        positions = num_computed[token_idx] + offsets
    token_rows = rows[token_idx]
    blocks = tables[token_idx, positions // state.block_size].to(torch.int64)
    return InputBatch(
        rows=rows,
        num_query=num_query,
        num_decodes=num_decodes,
        input_ids=state.token_ids[token_rows, positions],
        positions=positions,
        token_rows=token_rows,
        draw_rows=draw_rows,
        logit_starts=logit_starts,
        logit_tokens=logit_tokens,
        logit_rows=logit_rows,
        logit_rows_np=logits.rows.astype(np.int32),
        depths=depths.to(torch.int32),
        draw_positions=positions[logit_tokens] + 1,
        attention=AttentionInputs(
            query_starts=starts.to(torch.int32),
            query_starts_np=starts_np,
            seq_lens=(num_computed + num_query).to(torch.int32),
            block_tables=tables,
            slots=blocks * state.block_size + positions % state.block_size,
            seq_lens_np=plan.starts + plan.num_query,
            max_query_len=int(plan.num_query.max()),
            decode_len=1 + plan.num_drafts,
        ),
    )


class _LogitRows(NamedTuple):
    """Which token each logit row follows: fields as in `InputBatch`, on the host."""

    draw_rows: Int64Array
    starts: Int64Array
    tokens: Int64Array
    rows: Int64Array
    depths: Int64Array

    @classmethod
    def of(cls, plan: StepPlan, query_starts: Int32Array) -> _LogitRows:
        drawing = np.flatnonzero(plan.samples)
        count = plan.num_logits[drawing]
        starts = np.cumsum(count) - count
        draw_rows = plan.rows[drawing].astype(np.int64)
        depths = np.arange(int(count.sum())) - np.repeat(starts, count)
        first_tokens = query_starts[drawing + 1] - count
        return cls(
            draw_rows=draw_rows,
            starts=starts,
            tokens=np.repeat(first_tokens, count) + depths,
            rows=np.repeat(draw_rows, count),
            depths=depths,
        )


def _split(
    arrays: Sequence[npt.NDArray[np.integer[Any]]], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """The arrays on the device as int64, by one copy, each at an address of `ALIGNMENT`."""
    sizes = [len(array) for array in arrays]
    unit = ALIGNMENT // np.dtype(np.int64).itemsize
    places = np.cumsum([0, *(-(-size // unit) * unit for size in sizes)])
    joined = np.zeros(places[-1], dtype=np.int64)
    for array, place in zip(arrays, places, strict=False):
        joined[place : place + len(array)] = array
    together = to_device(joined, device)
    return tuple(together[place : place + size] for place, size in zip(places, sizes, strict=False))
