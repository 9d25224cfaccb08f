"""Device state of rows, and a step's inputs derived from it on the device.

`RequestRows` owns token history, lengths and block tables; one index is one row for as long as a
choice runs. `InputBatch` is views and gathers of it, made anew each step and never stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.base import AttentionInputs
from engine.blocks import NULL_BLOCK
from engine.buffers import StagedWrites, to_device
from engine.plan import StepPlan
from engine.request import Int32Array


class RequestRows:
    """Owner of what the device knows of each row.

    Attributes:
        scratch_row: max_rows; no choice's, it pads decode steps to the size of a graph.
        token_ids: int32 [max_rows + 1, max_len], prompt then output.
        num_computed: int64 [max_rows + 1], tokens whose KV is in the cache once issued work is
            done.
        block_tables: int32 [max_rows + 1, max_blocks], unused entries `NULL_BLOCK`.
    """

    def __init__(self, max_rows: int, max_len: int, block_size: int, device: torch.device) -> None:
        self.device = device
        self.block_size = block_size
        self.scratch_row = max_rows
        num_rows, max_blocks = max_rows + 1, -(-max_len // block_size)
        self.token_ids = torch.zeros((num_rows, max_len), dtype=torch.int32, device=device)
        self.num_computed = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.block_tables = torch.zeros((num_rows, max_blocks), dtype=torch.int32, device=device)
        self._token_writes = StagedWrites(self.token_ids)
        self._length_writes = StagedWrites(self.num_computed)
        self._table_writes = StagedWrites(self.block_tables)

    def apply(self, plan: StepPlan) -> None:
        """Publish the plan's admissions and grants."""
        for admission in plan.admissions:
            self._token_writes.stage(admission.row, 0, admission.choice.token_ids)
            num_computed = np.array([admission.num_computed], dtype=np.int64)
            self._length_writes.stage(admission.row, 0, num_computed)
        for grant in plan.grants:
            self._table_writes.stage(grant.row, grant.start, np.array(grant.blocks, np.int32))
        self._token_writes.flush()
        self._length_writes.flush()
        self._table_writes.flush()

    def forget(self, rows: Int32Array) -> None:
        """Empty the tables of rows outside the course of a step."""
        index = to_device(rows.astype(np.int64), self.device)
        self.block_tables.index_fill_(0, index, NULL_BLOCK)

    def enter(self, batch: InputBatch, token_ids: torch.Tensor) -> None:
        """Append drawn tokens int32 [num_logits] to their rows."""
        self.token_ids[batch.logit_rows, batch.draw_positions] = token_ids

    def advance(self, batch: InputBatch) -> None:
        """Count the step's tokens as computed."""
        self.num_computed[batch.rows] += batch.num_query


@dataclass(frozen=True)
class InputBatch:
    """One step's inputs: R rows, T tokens, L logit rows.

    Attributes:
        rows: int64 [R]. num_query: int64 [R].
        input_ids: int32 [T]. positions: int64 [T].
        logit_tokens: int64 [L], tokens whose hidden state goes through the head.
        logit_rows: int64 [L], the row that draws from each logit row.
        draw_positions: int64 [L], absolute position of the token to be drawn.
        attention: lengths and tables.
    """

    rows: torch.Tensor
    num_query: torch.Tensor
    input_ids: torch.Tensor
    positions: torch.Tensor
    logit_tokens: torch.Tensor
    logit_rows: torch.Tensor
    draw_positions: torch.Tensor
    attention: AttentionInputs


def make_batch(plan: StepPlan, state: RequestRows) -> InputBatch:
    """Gather a step's inputs from the rows; one small copy to the device, no wait."""
    num_rows, num_tokens = len(plan.rows), int(plan.num_query.sum())
    starts_np = np.zeros(num_rows + 1, dtype=np.int32)
    np.cumsum(plan.num_query, out=starts_np[1:])
    drawing_np = np.flatnonzero(plan.samples)
    small = np.concatenate([plan.rows, plan.num_query, starts_np, drawing_np]).astype(np.int64)
    small_device = to_device(small, state.device)
    rows, num_query, starts, drawing = torch.split(
        small_device, [num_rows, num_rows, num_rows + 1, len(drawing_np)]
    )

    num_computed = state.num_computed[rows]
    tables = state.block_tables[rows, : -(-plan.max_seq_len // state.block_size)]
    if num_tokens == num_rows:  # every row decodes
        token_idx, positions = torch.arange(num_rows, device=state.device), num_computed
    else:
        row_ids = torch.arange(num_rows, device=state.device)
        token_idx = torch.repeat_interleave(row_ids, num_query, output_size=num_tokens)
        offsets = torch.arange(num_tokens, device=state.device) - starts[token_idx]
        positions = num_computed[token_idx] + offsets
    blocks = tables[token_idx, positions // state.block_size].to(torch.int64)
    logit_tokens = starts[drawing + 1] - 1
    return InputBatch(
        rows=rows,
        num_query=num_query,
        input_ids=state.token_ids[rows[token_idx], positions],
        positions=positions,
        logit_tokens=logit_tokens,
        logit_rows=rows[drawing],
        draw_positions=positions[logit_tokens] + 1,
        attention=AttentionInputs(
            query_starts=starts.to(torch.int32),
            query_starts_np=starts_np,
            seq_lens=(num_computed + num_query).to(torch.int32),
            block_tables=tables,
            slots=blocks * state.block_size + positions % state.block_size,
            seq_lens_np=plan.starts + plan.num_query,
            max_query_len=int(plan.num_query.max()),
        ),
    )
