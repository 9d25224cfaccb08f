"""The eager gather where nothing is drafted: the host knows where every token goes.

It computes a step's inputs in numpy, and they reach the device by one copy. What the host does not
know is tokens that steps in flight have yet to draw: token ids alone are read from the rows there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.arrays import Int32Array, Int64Array
from engine.batch import RequestRows, RowEnds, StepInputs
from engine.contracts.attention import AttentionInputs
from engine.plan import StepPlan
from sampling.batch import SamplingBatch
from sampling.device.mirror import to_device_together
from sampling.rows import SamplingRows


def serves(state: RequestRows) -> bool:
    """Whether `gather_on_host` gathers steps of these rows."""
    return state.drafts.shape[1] == 0


def gather_on_host(plan: StepPlan, state: RequestRows, sampling_rows: SamplingRows) -> StepInputs:
    """Gather a step's inputs; its query tokens count as computed, but the last of rows that draw.

    That one counts once the row's token is entered.
    """
    rows, ends_np = plan.host_rows, plan.starts + plan.num_query
    starts_np = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(plan.num_query, out=starts_np[1:])
    tokens = _Tokens.of(plan, starts_np, state)
    drawing = plan.samples.nonzero()[0]
    sampling_np = plan.rows[drawing]
    draw_rows, draw_positions = rows[drawing], ends_np[drawing].astype(np.int64)
    width = state.token_ids.shape[1]
    sent = to_device_together(
        [
            *(rows, ends_np.astype(np.int64) - plan.samples, *tokens.per_token),
            *(draw_rows, draw_positions, draw_rows * width + draw_positions),
            *(starts_np[1:][drawing].astype(np.int64) - 1, starts_np, ends_np, tokens.tables),
            sampling_np,
        ],
        state.device,
    )
    row_ids, computed, places, positions, slots, draws, draws_at, draw_places, *others = sent
    logit_tokens, query_starts, seq_lens, block_tables, sampling_ids = others
    state.num_computed.index_copy_(0, row_ids, computed)
    return StepInputs(
        rows=row_ids,
        input_ids=torch.index_select(state.token_ids.view(-1), 0, places),
        positions=positions,
        attention=AttentionInputs(
            query_starts=query_starts,
            query_starts_np=starts_np,
            seq_lens=seq_lens,
            block_tables=block_tables,
            slots=slots,
            seq_lens_np=ends_np,
            max_query_len=int(plan.num_query.max()),
        ),
        logit_tokens=logit_tokens,
        sampling=_sampling(sampling_np, sampling_ids, draws_at, sampling_rows),
        drafts=None,
        drafting=None,
        row_writer=PlacedRowWriter(state, draws, draws_at, draw_places),
    )


def _sampling(
    rows_np: Int32Array, rows: torch.Tensor, positions: torch.Tensor, sampling_rows: SamplingRows
) -> SamplingBatch | None:
    if not len(rows_np):
        return None
    return SamplingBatch(rows, positions, rows_np, sampling_rows.needs(rows_np))


@dataclass(frozen=True)
class _Tokens:
    """A step's query tokens on the host.

    Attributes:
        per_token: int64 [T] each: places in the rows' histories from the first row's first token
            on, positions in the rows, slots.
        tables: int32 [R, blocks], the rows' block tables.
    """

    per_token: tuple[Int64Array, Int64Array, Int64Array]
    tables: Int32Array

    @classmethod
    def of(cls, plan: StepPlan, starts: Int32Array, state: RequestRows) -> _Tokens:
        rows, size = plan.host_rows, state.block_size
        tables = state.block_tables_np[rows, : -(-plan.max_seq_len // size)]
        row_idx = np.arange(len(rows))
        if plan.num_tokens == len(rows):  # each brings one
            positions = plan.starts.astype(np.int64)
        else:
            row_idx = np.repeat(row_idx, plan.num_query)
            shifts = (plan.starts - starts[:-1]).astype(np.int64)
            positions = np.arange(plan.num_tokens) + shifts[row_idx]
        blocks, offsets = positions // size, positions % size
        slots = tables[row_idx, blocks].astype(np.int64) * size + offsets
        places = rows[row_idx] * state.token_ids.shape[1] + positions
        return cls((places, positions, slots), tables)


@dataclass(frozen=True)
class PlacedRowWriter:
    """The `RowWriter` of a step whose tokens' places are known; L rows draw.

    Attributes:
        rows: int64 [L]. positions: int64 [L], of the token that each draws.
        places: int64 [L], the same in the rows' histories from the first row's first token on.
    """

    state: RequestRows
    rows: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor

    def enter(self, token_ids: torch.Tensor | None, num_new: torch.Tensor | None) -> RowEnds | None:
        assert num_new is None, "nothing is verified"
        if token_ids is not None:
            self.state.token_ids.view(-1).index_copy_(0, self.places, token_ids[:, 0])
            self.state.num_computed.index_copy_(0, self.rows, self.positions)
        return None
