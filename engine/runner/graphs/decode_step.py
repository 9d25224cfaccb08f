"""A decode step at fixed addresses, in two halves that a graph can hold each.

The first gathers the inputs of its rows on the device and runs the model to hidden states. The
second is `TokenStage`, over the same inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.arrays import Int32Array
from engine.batch import Drafting, RequestRows, RowEnds, StepInputs
from engine.contracts.attention import AttentionBackend, AttentionInputs
from engine.contracts.model import Hidden, ModelInputs
from engine.kernels.lora.groups import ActiveAdapters, TokenGroups
from engine.kernels.step_io import (
    DecodeInputs,
    RowState,
    enter_decoded,
    enter_verified,
    gather_decode_inputs,
)
from engine.memory.states import RowStates
from engine.runner.adapters import FixedGroups, RunnerAdapters
from engine.runner.forward import forward
from engine.runner.speculation import feature_layers_of
from engine.runner.step import StepTokens, TokenStage
from engine.runner.step_states import step_states
from sampling.batch import Drafts, SamplingBatch
from sampling.rows import GRAMMAR, SamplingNeeds


class StepRows:
    """The rows of a decode step, at a fixed address.

    Attributes:
        ids: int64 [max_rows], on the device, padded with the scratch row.
        ids_np: the same on the host.
    """

    def __init__(self, rows: RequestRows) -> None:
        self.ids = torch.full((rows.scratch_row,), rows.scratch_row, device=rows.device)
        self.ids_np = np.full(rows.scratch_row, rows.scratch_row, dtype=np.int64)


@dataclass(frozen=True)
class DecodeRowWriter:
    """The `RowWriter` of a decode step: one kernel over fixed addresses.

    Attributes:
        ids: int64 [S], the step's rows.
        inputs: theirs, as they were gathered.
    """

    ids: torch.Tensor
    state: RowState
    inputs: DecodeInputs

    def enter(self, token_ids: torch.Tensor | None, num_new: torch.Tensor | None) -> RowEnds | None:
        assert token_ids is not None, "every row of a decode step draws"
        if num_new is None:
            enter_decoded(self.ids, token_ids, self.state)
            return None
        entered = enter_verified(self.ids, token_ids, num_new, self.inputs, self.state)
        return RowEnds(
            next_ids=token_ids.flatten(),  # after the last kept one they are 0
            last=entered.last,
            positions=entered.positions,
            limits=entered.limits,
            num_offered=entered.num_offered,
        )


def launch_ends(rows: RequestRows, max_rows: int) -> None:
    """Launch the kernels at the two ends of decode steps without drafts.

    Args:
        rows: one row, for `max_rows` and the scratch row; only for launches that are collected.
    """
    tensors = (rows.token_ids, rows.num_computed, rows.limits, rows.drafts, rows.block_tables)
    state = RowState(*(tensor.expand(max_rows + 1, *tensor.shape[1:]) for tensor in tensors))
    ids = torch.zeros(1, dtype=torch.int64, device=rows.device)
    inputs = DecodeInputs.empty(1, 0, rows.block_tables.shape[1], rows.device)
    gather_decode_inputs(ids, state, inputs, rows.block_size)
    enter_decoded(ids, inputs.input_ids, state)


class DecodeStep:
    """Runs steps in which every row decodes with equally many drafts.

    Args:
        step_rows: which rows; the first of them take part.
        num_drafts: that each row brings, and gets for the next step; at most k of the drafter.
        states: of rows, where the model's layers keep them.
        adapters: that rows may have; None where none are served.
    """

    def __init__(
        self,
        stage: TokenStage,
        attention: AttentionBackend,
        rows: RequestRows,
        step_rows: StepRows,
        num_drafts: int,
        states: RowStates | None = None,
        adapters: RunnerAdapters | None = None,
    ) -> None:
        self.num_drafts = num_drafts
        self._states = states
        self._groups, self._active, self._handovers = None, ActiveAdapters(), None
        self._has_head = adapters is not None and adapters.has_head
        if adapters is not None:
            max_tokens = rows.scratch_row * (1 + num_drafts)
            self._groups = FixedGroups(adapters, max_tokens, rows.device)
            self._active, self._handovers = adapters.active, adapters.handovers
        self._stage, self._attention = stage, attention
        self._rows, self._step_rows = rows, step_rows
        self._feature_layers = feature_layers_of(stage.speculation) if num_drafts else ()
        self._state = RowState(
            rows.token_ids, rows.num_computed, rows.limits, rows.drafts, rows.block_tables
        )
        largest, device, width = rows.scratch_row, rows.device, 1 + num_drafts
        num_blocks = rows.block_tables.shape[1]
        self._inputs = DecodeInputs.empty(largest, num_drafts, num_blocks, device)
        self._starts_np = np.arange(largest + 1, dtype=np.int32) * width
        self._starts = torch.from_numpy(self._starts_np).to(device)
        self._longest_np = np.full(largest, rows.token_ids.shape[1], dtype=np.int32)
        self._logit_starts = self._starts[:-1].to(torch.int64)
        self._depths = torch.arange(largest * width, dtype=torch.int32, device=device) % width
        self._num_drafts = torch.full_like(self._depths[:largest], num_drafts)
        self._row_idx = torch.arange(largest, device=device)
        self._mask_slots = torch.full_like(self._depths, -1)

    def gather(self, size: int) -> None:
        """Gather the inputs of the first `size` rows: each one's next token, and its drafts."""
        ids, inputs = self._step_rows.ids[:size], self._inputs.of_rows(size)
        gather_decode_inputs(ids, self._state, inputs, self._rows.block_size)

    def forward_adapted(self, size: int) -> Hidden:
        """Hidden states as of `forward`, of rows that have adapters; see `put_adapters`."""
        assert self._groups is not None
        num_tokens = size * (1 + self.num_drafts)
        handovers = self._handovers if num_tokens == 1 else None
        with self._active.using(self._groups.of_size(num_tokens), handovers):
            return self.forward(size)

    def put_adapters(self, slots: Int32Array, size: int) -> None:
        """Say which adapters the first rows of the next step or draw of `size` rows have.

        Args:
            slots: int32 [R], of these rows.
        """
        assert self._groups is not None
        width = 1 + self.num_drafts
        self._groups.put(np.repeat(slots, width), size * width)

    def forward(self, size: int) -> Hidden:
        """Hidden states of the first `size` rows' query tokens."""
        self.gather(size)
        inputs = self._inputs.of_rows(size)
        self._attention.begin(self._attention_inputs(size))
        states = step_states(
            self._states,
            self._step_rows.ids[:size],
            inputs.positions,
            self._starts[: size + 1],
            self._starts_np[: size + 1],
            num_decodes=size,
        )
        own = ModelInputs(inputs.input_ids, inputs.positions, self._attention, states)
        return forward(self._stage.model, own, inputs.slots, self._feature_layers)

    def put_mask_slots(self, slots: torch.Tensor) -> None:
        """Tell the next draw which masks its logit rows have: int32 [N], as in `StepMasks`."""
        self._mask_slots[: len(slots)].copy_(slots)

    def draw(self, size: int, hidden: Hidden, needs: SamplingNeeds) -> StepTokens:
        """Draw after the first `size` rows' hidden states, and enter the tokens into them.

        Args:
            hidden: what `forward` left, of as many rows or more.
            needs: cover what the rows ask for.
        """
        head = self._head_adapters(size * (1 + self.num_drafts))
        tokens = self._stage(self._step_inputs(size, needs), hidden, head)
        assert tokens is not None, "every row of a decode step draws"
        return tokens

    def _step_inputs(self, size: int, needs: SamplingNeeds) -> StepInputs:
        """Views of what `forward` gathered for the first `size` rows."""
        inputs, ids = self._inputs.of_rows(size), self._step_rows.ids[:size]
        rows_np = self._step_rows.ids_np[:size].astype(np.int32)
        num_tokens = len(inputs.positions)
        sampling = SamplingBatch(
            rows=inputs.token_rows,
            positions=inputs.draw_positions,
            rows_np=np.repeat(rows_np, 1 + self.num_drafts),
            needs=needs,
            depths=self._depths[:num_tokens] if self.num_drafts else None,
            mask_slots=self._mask_slots[:num_tokens] if needs.flags & GRAMMAR else None,
        )
        drafts, drafting = None, None
        if self.num_drafts:
            drafts = Drafts(
                starts=self._logit_starts[:size],
                num_drafts=self._num_drafts[:size],
                token_ids=inputs.draft_ids,
                room=inputs.room,
            )
            places, tables = self._row_idx[:size], inputs.block_tables
            drafting = Drafting(self.num_drafts, places, ids, rows_np, needs, tables)
        return StepInputs(
            rows=ids,
            input_ids=inputs.input_ids,
            positions=inputs.positions,
            attention=self._attention_inputs(size),
            logit_tokens=slice(num_tokens),
            sampling=sampling,
            drafts=drafts,
            drafting=drafting,
            row_writer=DecodeRowWriter(ids, self._state, inputs),
        )

    def _head_adapters(self, num_tokens: int) -> TokenGroups | None:
        """Where a draw reads the adapters of its rows, be there any or not: it may be captured."""
        if self._groups is None or not self._has_head:
            return None
        return self._groups.of_size(num_tokens)

    def _attention_inputs(self, size: int) -> AttentionInputs:
        inputs = self._inputs.of_rows(size)
        return AttentionInputs(
            query_starts=self._starts[: size + 1],
            query_starts_np=self._starts_np[: size + 1],
            seq_lens=inputs.seq_lens,
            block_tables=inputs.block_tables,
            slots=inputs.slots,
            seq_lens_np=self._longest_np[:size],
            max_query_len=1 + self.num_drafts,
            decode_len=1 + self.num_drafts,
        )
