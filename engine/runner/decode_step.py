"""A decode step on fixed addresses, in two parts that a graph can hold each.

The first gathers the inputs of its rows on the device and runs the model to hidden states. The
second makes logits, draws or verifies, enters the tokens into their rows and drafts the next ones.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.batch import RequestRows
from engine.contracts.attention import AttentionBackend, AttentionInputs
from engine.contracts.drafter import VerifiedStep
from engine.contracts.model import CausalLM
from engine.kernels.step_io import (
    DecodeInputs,
    Entered,
    RowState,
    enter_decoded,
    enter_verified,
    gather_decode_inputs,
)
from engine.runner.forward import Hidden, forward
from engine.runner.speculation import Drawn, Speculation, feature_layers_of
from sampling.rows import SamplingNeeds
from sampling.sampler import Sampler, SamplingBatch
from sampling.speculative.rejection import Drafts


class StepRows:
    """Which rows a decode step is of.

    Attributes:
        ids: int64 [max_rows], on the device; the scratch row where there are fewer.
        ids_np: the same on the host.
    """

    def __init__(self, rows: RequestRows) -> None:
        self.ids = torch.full((rows.scratch_row,), rows.scratch_row, device=rows.device)
        self.ids_np = np.full(rows.scratch_row, rows.scratch_row, dtype=np.int64)


class DecodeStep:
    """Steps in which every row decodes with as many drafts.

    Args:
        step_rows: of the step; its first rows take part.
        speculation: verifies and drafts; None where rows bring one token.
    """

    def __init__(
        self,
        model: CausalLM,
        attention: AttentionBackend,
        rows: RequestRows,
        sampler: Sampler,
        step_rows: StepRows,
        speculation: Speculation | None,
    ) -> None:
        self.num_drafts = 0 if speculation is None else speculation.drafter.num_tokens
        self._model, self._attention = model, attention
        self._rows, self._sampler = rows, sampler
        self._step_rows, self._speculation = step_rows, speculation
        self._feature_layers = feature_layers_of(speculation)
        self._state = RowState(
            rows.token_ids, rows.num_computed, rows.limits, rows.drafts, rows.block_tables
        )
        largest, device, width = rows.scratch_row, rows.device, 1 + self.num_drafts
        num_blocks = rows.block_tables.shape[1]
        self._inputs = DecodeInputs.empty(largest, self.num_drafts, num_blocks, device)
        self._starts_np = np.arange(largest + 1, dtype=np.int32) * width
        self._starts = torch.from_numpy(self._starts_np).to(device)
        self._longest_np = np.full(largest, rows.token_ids.shape[1], dtype=np.int32)
        self._logit_starts = self._starts[:-1].to(torch.int64)
        self._depths = torch.arange(largest * width, dtype=torch.int32, device=device) % width
        self._num_drafts = torch.full_like(self._depths[:largest], self.num_drafts)
        self._row_idx = torch.arange(largest, device=device)

    def forward(self, size: int) -> Hidden:
        """Hidden states of the first `size` rows' query tokens."""
        inputs = self._inputs.of_rows(size)
        ids = self._step_rows.ids[:size]
        gather_decode_inputs(ids, self._state, inputs, self._rows.block_size)
        self._attention.begin(self._attention_inputs(size))
        ids, positions = inputs.input_ids, inputs.positions
        return forward(self._model, ids, positions, self._attention, self._feature_layers)

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

    def draw(self, size: int, hidden: Hidden, needs: SamplingNeeds) -> Drawn:
        """What the first `size` rows draw behind their hidden states, entered into them."""
        inputs, ids = self._inputs.of_rows(size), self._step_rows.ids[:size]
        rows_np = self._step_rows.ids_np[:size].astype(np.int32)
        logits = self._model.logits(hidden.final[: len(inputs.positions)])
        batch = SamplingBatch(
            rows=inputs.token_rows,
            positions=inputs.draw_positions,
            rows_np=np.repeat(rows_np, 1 + self.num_drafts),
            needs=needs,
            depths=self._depths[: len(inputs.positions)] if self.num_drafts else None,
        )
        if self._speculation is None:
            drawn = self._sampler.draw(logits, batch)
            enter_decoded(ids, drawn.token_ids, self._state)
            return Drawn.plainly(drawn)
        drafts = Drafts(
            starts=self._logit_starts[:size],
            num_drafts=self._num_drafts[:size],
            token_ids=inputs.draft_ids,
            room=inputs.room,
            logits=self._speculation.drafter.draft_logits,
        )
        verified = self._speculation.verify(logits, batch, drafts)
        entered = enter_verified(ids, verified.token_ids, verified.num_new, inputs, self._state)
        step = self._verified_step(size, hidden, verified.token_ids, entered, needs)
        self._rows.drafts.index_copy_(0, ids, self._speculation.drafter.propose(step))
        return Drawn.verified(verified, entered.num_offered)

    def _verified_step(
        self,
        size: int,
        hidden: Hidden,
        token_ids: torch.Tensor,
        entered: Entered,
        needs: SamplingNeeds,
    ) -> VerifiedStep:
        inputs, ids = self._inputs.of_rows(size), self._step_rows.ids[:size]
        num_tokens = len(inputs.positions)
        features = hidden.features
        return VerifiedStep(
            rows=ids,
            input_ids=inputs.input_ids,
            positions=inputs.positions,
            next_ids=token_ids.flatten(),  # behind the last that stands they are 0
            hidden=hidden.final[:num_tokens],
            features=None if features is None else features[:num_tokens],
            attention=self._attention_inputs(size),
            draw_rows=self._row_idx[:size],
            last=entered.last,
            sampling=SamplingBatch(
                rows=ids.to(torch.int32),
                positions=entered.positions,
                rows_np=self._step_rows.ids_np[:size].astype(np.int32),
                needs=needs,
            ),
            limits=entered.limits,
            block_tables=inputs.block_tables,
        )
