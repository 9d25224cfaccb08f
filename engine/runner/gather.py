"""The eager gather where rows bring drafts: inputs made from the rows by torch operations.

How many of a row's drafts were accepted is known on the device alone, and so is where its tokens
go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from engine.arrays import Int32Array, Int64Array
from engine.batch import Drafting, RequestRows, RowEnds, StepInputs
from engine.contracts.attention import AttentionInputs
from engine.plan import StepPlan
from sampling.batch import Drafts, SamplingBatch
from sampling.device.mirror import to_device, to_device_together
from sampling.rows import SamplingRows


def gather_inputs(plan: StepPlan, state: RequestRows, sampling_rows: SamplingRows) -> StepInputs:
    """Gather a step's inputs from the rows; small copies to the device, no wait."""
    starts_np = np.zeros(len(plan.rows) + 1, dtype=np.int32)
    np.cumsum(plan.num_query, out=starts_np[1:])
    logits = _LogitRows.of(plan, starts_np)
    arrays = [array.astype(np.int64) for array in (plan.rows, plan.num_query, starts_np, *logits)]
    rows, num_query, starts, draw_rows, logit_starts, logit_tokens, logit_rows, depths = (
        to_device_together(arrays, state.device)
    )
    num_decodes = int(plan.decodes.sum()) if plan.num_drafts else 0
    if num_decodes:
        state.enter_drafts(rows[:num_decodes], plan.num_drafts)
    tokens = _Tokens.of(plan, state, rows, num_query, starts)
    sampling, draws, drafts = None, None, None
    if len(draw_rows):
        draw_positions, rows_np = tokens.positions[logit_tokens] + 1, logits.rows.astype(np.int32)
        sampling = SamplingBatch(
            rows=logit_rows.to(torch.int32),
            positions=draw_positions,
            rows_np=rows_np,
            needs=sampling_rows.needs(rows_np),
            depths=depths.to(torch.int32) if plan.num_drafts else None,
        )
        draws = _Draws(draw_rows, draw_positions[logit_starts], logit_starts)
        drafts = _drafts(plan, state, draws, num_decodes) if plan.num_drafts else None
    drafting = _drafting(plan, state, sampling_rows, rows) if plan.runs_drafter else None
    row_writer = GatheredRowWriter(
        state, rows, num_query, starts, num_decodes, tokens, draws, drafts, drafting
    )
    return StepInputs(
        rows=rows,
        input_ids=state.token_ids[tokens.rows, tokens.positions],
        positions=tokens.positions,
        attention=_attention_inputs(plan, tokens, starts, starts_np),
        logit_tokens=logit_tokens,
        sampling=sampling,
        drafts=drafts,
        drafting=drafting,
        row_writer=row_writer,
    )


def _attention_inputs(
    plan: StepPlan, tokens: _Tokens, starts: torch.Tensor, starts_np: Int32Array
) -> AttentionInputs:
    return AttentionInputs(
        query_starts=starts.to(torch.int32),
        query_starts_np=starts_np,
        seq_lens=tokens.seq_lens.to(torch.int32),
        block_tables=tokens.block_tables,
        slots=tokens.slots,
        seq_lens_np=plan.starts + plan.num_query,
        max_query_len=int(plan.num_query.max()),
        decode_len=1 + plan.num_drafts,
    )


class _Tokens(NamedTuple):
    """A step's query tokens on the device, and the lengths and tables of their rows."""

    rows: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    slots: torch.Tensor  # int64 [T]
    seq_lens: torch.Tensor  # int64 [R]
    block_tables: torch.Tensor  # int32 [R, max_blocks]

    @classmethod
    def of(
        cls,
        plan: StepPlan,
        state: RequestRows,
        rows: torch.Tensor,
        num_query: torch.Tensor,
        starts: torch.Tensor,
    ) -> _Tokens:
        num_rows, num_tokens = len(plan.rows), plan.num_tokens
        num_computed = state.num_computed[rows]
        row_ids = torch.arange(num_rows, device=state.device)
        if num_tokens == num_rows:  # every row brings one token
            token_idx, positions = row_ids, num_computed
        else:
            token_idx = torch.repeat_interleave(row_ids, num_query, output_size=num_tokens)
            offsets = torch.arange(num_tokens, device=state.device) - starts[token_idx]
            positions = num_computed[token_idx] + offsets
        size, tables = state.block_size, state.tables_of(rows, plan.max_seq_len)
        blocks = tables[token_idx, positions // size].to(torch.int64)
        slots = blocks * size + positions % size
        return cls(rows[token_idx], positions, slots, num_computed + num_query, tables)


class _Draws(NamedTuple):
    """The L rows of a step that draw, on the device."""

    rows: torch.Tensor  # int64 [L]
    positions: torch.Tensor  # int64 [L], of the first token each draws
    logit_starts: torch.Tensor  # int64 [L], its first logit row


def _drafts(plan: StepPlan, state: RequestRows, draws: _Draws, num_decodes: int) -> Drafts:
    """The drafts that a step's logit rows verify; the first `num_decodes` rows bring some."""
    num_drafts = torch.zeros(len(draws.rows), dtype=torch.int32, device=state.device)
    num_drafts[:num_decodes] = plan.num_drafts
    room = (state.limits[draws.rows] - draws.positions).clamp(min=1)
    return Drafts(
        starts=draws.logit_starts,
        num_drafts=num_drafts,
        token_ids=state.drafts[draws.rows, : plan.num_drafts],
        room=room.to(torch.int32),
    )


def _drafting(
    plan: StepPlan, state: RequestRows, sampling_rows: SamplingRows, rows: torch.Tensor
) -> Drafting:
    """The rows that the plan says are drafted for."""
    places = to_device(np.flatnonzero(plan.proposes), state.device)
    own, rows_np = rows[places], plan.rows[plan.proposes]
    tables = state.tables_of(own, plan.max_seq_len)
    needs = sampling_rows.needs(rows_np)
    return Drafting(plan.num_proposed, places, own, rows_np, needs, tables)


@dataclass(frozen=True)
class GatheredRowWriter:
    """The `RowWriter` of a step of any shape, in torch operations."""

    state: RequestRows
    rows: torch.Tensor
    num_query: torch.Tensor
    query_starts: torch.Tensor
    num_decodes: int
    tokens: _Tokens
    draws: _Draws | None
    drafts: Drafts | None
    drafting: Drafting | None

    def enter(self, token_ids: torch.Tensor | None, num_new: torch.Tensor | None) -> RowEnds | None:
        if self.draws is not None and token_ids is not None:
            self.state.enter(self.draws.rows, self.draws.positions, token_ids)
        computed = self.num_query
        if num_new is not None:
            num_new = num_new[: self.num_decodes].to(computed.dtype)
            computed = computed.clone()
            computed[: self.num_decodes] = num_new
        self.state.num_computed[self.rows] += computed
        return None if self.drafting is None else self._ends(self.drafting, num_new)

    def _ends(self, drafting: Drafting, num_new: torch.Tensor | None) -> RowEnds:
        """Find where rows end; `num_new` int64 [num_decodes]."""
        starts, positions = self.query_starts, self.tokens.positions
        last = starts[1:] - 1
        if num_new is not None:
            last[: self.num_decodes] = starts[: self.num_decodes] + (num_new - 1).clamp(min=0)
        last = last[drafting.places]
        return RowEnds(
            next_ids=self.state.token_ids[self.tokens.rows, positions + 1],
            last=last,
            positions=positions[last] + 2,
            limits=self.state.limits[drafting.rows],
            num_offered=None if self.drafts is None else _num_offered(self.drafts),
        )


def _num_offered(drafts: Drafts) -> torch.Tensor:
    """Count the drafts of each row, as far as there is room: int32 [L]."""
    depths = torch.arange(drafts.token_ids.shape[1], device=drafts.room.device)
    ends = torch.minimum(drafts.num_drafts, drafts.room)
    return ((drafts.token_ids >= 0) & (depths < ends[:, None])).sum(1, dtype=torch.int32)


class _LogitRows(NamedTuple):
    """The N logit rows of a step, on the host."""

    draw_rows: Int64Array  # [L], the rows that draw
    starts: Int64Array  # [L], their first logit rows
    tokens: Int64Array  # [N], the token whose hidden state makes the logits
    rows: Int64Array  # [N], the row that draws from them
    depths: Int64Array  # [N], drafts before the token to be drawn

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
