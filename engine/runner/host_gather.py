"""The gather of a plain decode step on a CPU, in numpy over the rows' own memory.

On arrays of a few numbers a torch operation costs three to six times what numpy's does, and
`engine.runner.gather` has some forty of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.arrays import Int64Array
from engine.batch import RequestRows, RowEnds, StepInputs
from engine.contracts.attention import AttentionInputs
from engine.plan import StepPlan
from sampling.batch import SamplingBatch
from sampling.rows import SamplingRows


def serves(plan: StepPlan, state: RequestRows) -> bool:
    """Whether `gather_on_host` can gather the step: one token a row, no drafts, on a CPU."""
    return state.device.type == "cpu" and plan.is_decode and not plan.num_drafts


def gather_on_host(plan: StepPlan, state: RequestRows, sampling_rows: SamplingRows) -> StepInputs:
    """Gather what `gather_inputs` gathers, of a step that `serves` tells of."""
    rows, size, count = plan.rows.astype(np.int64), state.block_size, len(plan.rows)
    positions: Int64Array = state.num_computed.numpy()[rows]
    tables = state.block_tables.numpy()[rows, : -(-plan.max_seq_len // size)]
    blocks = tables[np.arange(count), positions // size]
    starts_np = np.arange(count + 1, dtype=np.int32)
    seq_lens = positions + 1
    return StepInputs(
        rows=torch.from_numpy(rows),
        input_ids=torch.from_numpy(state.token_ids.numpy()[rows, positions]),
        positions=torch.from_numpy(positions),
        attention=AttentionInputs(
            query_starts=torch.from_numpy(starts_np),
            query_starts_np=starts_np,
            seq_lens=torch.from_numpy(seq_lens.astype(np.int32)),
            block_tables=torch.from_numpy(tables),
            slots=torch.from_numpy(blocks.astype(np.int64) * size + positions % size),
            seq_lens_np=plan.starts + plan.num_query,
            max_query_len=1,
        ),
        logit_tokens=slice(0, count),
        sampling=SamplingBatch(
            rows=torch.from_numpy(plan.rows),
            positions=torch.from_numpy(seq_lens),
            rows_np=plan.rows,
            needs=sampling_rows.needs(plan.rows),
        ),
        drafts=None,
        drafting=None,
        row_writer=HostRowWriter(state, rows, seq_lens),
    )


@dataclass(frozen=True)
class HostRowWriter:
    """The `RowWriter` of such a step.

    Attributes:
        rows: [R]. positions: [R], of the token that each draws.
    """

    state: RequestRows
    rows: Int64Array
    positions: Int64Array

    def enter(self, token_ids: torch.Tensor | None, num_new: torch.Tensor | None) -> RowEnds | None:
        assert token_ids is not None, "every row of a decode step draws"
        assert num_new is None, "nothing is verified"
        self.state.token_ids.numpy()[self.rows, self.positions] = token_ids.numpy()[:, 0]
        self.state.num_computed.numpy()[self.rows] = self.positions
        return None
