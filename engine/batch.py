"""The rows' state on the device, and a step's inputs, which are gathered from it.

`RequestRows` owns token history, lengths and block tables; one index is one row for as long as a
choice runs. `StepInputs` is views and gathers of it, made anew for each step and never stored:
`engine.runner.host_gather` makes those of a step of any shape, `engine.runner.gather` where there
is a drafter, `engine.runner.graphs.decode_step` those of a decode step, at fixed addresses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from engine.arrays import Int32Array
from engine.contracts.attention import AttentionInputs
from engine.memory.blocks import NULL_BLOCK
from engine.memory.recent_outputs import RecentOutputs
from engine.plan import Admission, BlockGrant, StepPlan
from sampling.batch import Drafts, SamplingBatch
from sampling.device.mirror import ALIGNMENT, Writes, publish, span_writes
from sampling.rows import SamplingNeeds


def row_width(max_len: int, num_drafts: int) -> int:
    """The positions a row may touch: a step in flight after a row's end may begin one position
    past it, and drafts twice k."""
    return max_len + (2 * num_drafts + 2 if num_drafts else 0)


class RequestRows:
    """Owns what the device knows of each row.

    Histories and tables are wide enough for the drafts after the last place of the context.

    Attributes:
        scratch_row: max_rows; no choice's, it pads decode steps to the size of a graph.
        token_ids: int32 [max_rows + 1, width], prompt then output, then drafts not verified yet.
        num_computed: int64 [max_rows + 1], tokens whose KV is in the cache once issued work is
            done.
        limits: int64 [max_rows + 1], first position a row's tokens may not reach.
        drafts: int32 [max_rows + 1, k], of each row's next step; -1 where there is none.
        block_tables: int32 [max_rows + 1, max_blocks], unused entries `NULL_BLOCK`.
        block_tables_np: the same on the host, as of the last plan.
        recent: outputs of choices that ended, for drafters that read them; else None.
    """

    def __init__(
        self,
        max_rows: int,
        max_len: int,
        block_size: int,
        device: torch.device,
        num_drafts: int = 0,
        recent: RecentOutputs | None = None,
    ) -> None:
        self.device = device
        self.recent = recent
        self.block_size = block_size
        self.scratch_row = max_rows
        num_rows = max_rows + 1
        max_blocks = -(-row_width(max_len, num_drafts) // block_size)
        width = -(-row_width(max_len, num_drafts) // ALIGNMENT) * ALIGNMENT
        self.token_ids = torch.zeros((num_rows, width), dtype=torch.int32, device=device)
        self.num_computed = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.limits = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.drafts = torch.full((num_rows, num_drafts), -1, dtype=torch.int32, device=device)
        self.block_tables = torch.zeros((num_rows, max_blocks), dtype=torch.int32, device=device)
        self.block_tables_np: Int32Array = np.zeros((num_rows, max_blocks), dtype=np.int32)

    def take(self, plan: StepPlan) -> list[Writes]:
        """Take what changed since the last plan: rows vacated and admitted, blocks, gaps.

        Returns:
            What is to be published before the step; the order matters.
        """
        writes = [
            *self._vacate(plan.released),
            *self._admit(plan.admissions),
            *self._grant(plan.grants),
        ]
        if plan.undrafted:
            writes.append(Writes(self.drafts, np.array(plan.undrafted, dtype=np.int64), -1))
        if self.recent is not None:
            writes += self.recent.take(plan.outputs, plan.admissions)
        return writes

    def _admit(self, admissions: list[Admission]) -> list[Writes]:
        if not admissions:
            return []
        rows = np.array([each.row for each in admissions], dtype=np.int64)
        computed = np.array([each.num_computed for each in admissions], dtype=np.int64)
        limits = np.array([each.limit for each in admissions], dtype=np.int64)
        histories = [each.choice.token_ids for each in admissions]
        spans = [(each.row, 0, len(each.choice.token_ids)) for each in admissions]
        return [
            Writes(self.num_computed, rows, computed),
            Writes(self.limits, rows, limits),
            span_writes(self.token_ids, spans, np.concatenate(histories)),
        ]

    def _grant(self, grants: list[BlockGrant]) -> list[Writes]:
        if not grants:
            return []
        spans = [(each.row, each.start, len(each.blocks)) for each in grants]
        blocks = np.array([block for each in grants for block in each.blocks])
        writes = span_writes(self.block_tables, spans, blocks)
        self.block_tables_np.reshape(-1)[writes.places] = writes.values
        return [writes]

    def _vacate(self, rows: list[int]) -> list[Writes]:
        """Empty the tables of vacated rows, so that nobody writes to blocks of others."""
        if not rows:
            return []
        self.block_tables_np[rows] = NULL_BLOCK
        return [Writes(self.block_tables, np.array(rows, dtype=np.int64), NULL_BLOCK)]

    def forget(self, rows: list[int]) -> None:
        """Vacate rows at once."""
        publish(self._vacate(rows))

    def tables_of(self, rows: torch.Tensor, max_seq_len: int) -> torch.Tensor:
        """Block tables of rows int64 [n], wide enough for a step and what is drafted after it."""
        num_drafts = self.drafts.shape[1]
        reach = max_seq_len + (2 * num_drafts + 1 if num_drafts else 0)
        return self.block_tables[rows, : -(-reach // self.block_size)]

    def enter_drafts(self, rows: torch.Tensor, count: int) -> None:
        """Put the first drafts of rows int64 [n] after their last tokens, to be verified there."""
        places = torch.arange(1, 1 + count, device=self.device)
        positions = self.num_computed[rows, None] + places
        self.token_ids[rows[:, None], positions] = self.drafts[rows, :count].clamp(min=0)

    def enter(self, rows: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Write tokens int32 [L, W] into rows int64 [L], from positions int64 [L] on.

        Those that are not kept are written too: later steps overwrite them.
        """
        places = torch.arange(token_ids.shape[1], device=self.device)
        self.token_ids[rows[:, None], positions[:, None] + places] = token_ids


class Drafting(NamedTuple):
    """The rows for which the drafter proposes after a step: P of its R rows.

    Attributes:
        num_drafts: that each gets.
        places: int64 [P], where they are among the step's rows.
        rows: int64 [P]. rows_np: int32 [P], the same on the host.
        needs: of these rows.
        block_tables: int32 [P, max_blocks], wide enough for what is drafted.
    """

    num_drafts: int
    places: torch.Tensor
    rows: torch.Tensor
    rows_np: Int32Array
    needs: SamplingNeeds
    block_tables: torch.Tensor


class RowEnds(NamedTuple):
    """The ends of rows once a step's tokens are in them, from which the drafter goes on.

    Attributes:
        next_ids: int32 [T], the token after each query token, as in `VerifiedStep`.
        last: int64 [P], the last query token that is kept in each row of `Drafting`.
        positions: int64 [P], of the next step's first draft. limits: int64 [P], of the rows.
        num_offered: int32 [L], drafts that were verified, as far as there was room; None where
            the step verified none.
    """

    next_ids: torch.Tensor
    last: torch.Tensor
    positions: torch.Tensor
    limits: torch.Tensor
    num_offered: torch.Tensor | None


class RowWriter(Protocol):
    """Puts the tokens of one step into their rows."""

    def enter(self, token_ids: torch.Tensor | None, num_new: torch.Tensor | None) -> RowEnds | None:
        """Append what was drawn, and count query tokens as computed.

        Args:
            token_ids: int32 [L, W]; None where no row draws.
            num_new: int32 [L], how many of them are kept, where drafts were verified. None: all do.

        Returns:
            None where the drafter does not run after the step.
        """
        ...


@dataclass(frozen=True)
class StepInputs:
    """One step's inputs: R rows, T tokens; L rows draw from N logit rows.

    Attributes:
        rows: int64 [R].
        input_ids: int32 [T]. positions: int64 [T], of the tokens in their rows.
        attention: lengths, tables and slots.
        logit_tokens: the N tokens whose hidden state goes through the LM head: int64 [N], or a
            slice.
        sampling: the N logit rows; None where no row draws.
        drafts: what the logit rows verify, its `logits` left to the drafter; None where they
            verify nothing.
        drafting: None where the drafter does not run after the step, or there is none.
        row_writer: puts the step's tokens into their rows.
    """

    rows: torch.Tensor
    input_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionInputs
    logit_tokens: torch.Tensor | slice
    sampling: SamplingBatch | None
    drafts: Drafts | None
    drafting: Drafting | None
    row_writer: RowWriter

    def with_masks(self, mask_slots: torch.Tensor | None) -> StepInputs:
        """The same with the slots of the logit rows' masks, int32 [N], or None for no masks."""
        if mask_slots is None or self.sampling is None:
            return self
        return replace(self, sampling=replace(self.sampling, mask_slots=mask_slots))
