"""Speculation on the device: drafts verified, counted and made anew, eagerly or in a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from engine.batch import InputBatch, RequestRows
from engine.buffers import to_device
from engine.contracts.drafter import Drafter, VerifiedStep
from engine.plan import StepPlan
from engine.runner.forward import Hidden
from sampling.batch import LogprobsOutput
from sampling.compiling import compiling_together
from sampling.rows import SamplingRows
from sampling.sampler import SamplerOutput, SamplingBatch
from sampling.speculative.rejection import Drafts, Method, Verification, verify
from sampling.warm_up import compile_verification


class Drawn(NamedTuple):
    """What L rows drew from N logit rows, on the device.

    Attributes:
        token_ids: int32 [L, 1 + num_drafts]. bad: bool [L].
        num_new, num_offered, num_accepted: int32 [L], as in `StepResult`; None without drafts.
        logprobs: of the N logit rows.
    """

    token_ids: torch.Tensor
    bad: torch.Tensor
    num_new: torch.Tensor | None
    num_offered: torch.Tensor | None
    num_accepted: torch.Tensor | None
    logprobs: LogprobsOutput | None

    def of_rows(self, count: int) -> Drawn:
        """Of the first `count` rows, all of which have as many logit rows."""
        logprobs = self.logprobs
        if logprobs is not None:
            num_logits = count * self.token_ids.shape[1]
            logprobs = LogprobsOutput(*(column[:num_logits] for column in logprobs))
        return Drawn(
            token_ids=self.token_ids[:count],
            bad=self.bad[:count],
            num_new=None if self.num_new is None else self.num_new[:count],
            num_offered=None if self.num_offered is None else self.num_offered[:count],
            num_accepted=None if self.num_accepted is None else self.num_accepted[:count],
            logprobs=logprobs,
        )

    @classmethod
    def plainly(cls, drawn: SamplerOutput) -> Drawn:
        """Of a step without drafts."""
        return cls(drawn.token_ids[:, None], drawn.bad, None, None, None, drawn.logprobs)

    @classmethod
    def verified(cls, verified: Verification, num_offered: torch.Tensor) -> Drawn:
        """Of a step with drafts."""
        return cls(
            token_ids=verified.token_ids,
            bad=verified.bad,
            num_new=verified.num_new,
            num_offered=num_offered,
            num_accepted=verified.num_accepted,
            logprobs=verified.logprobs,
        )


def num_offered(drafts: Drafts) -> torch.Tensor:
    """How many drafts each row has, as far as there is room: int32 [L]."""
    depths = torch.arange(drafts.token_ids.shape[1], device=drafts.room.device)
    ends = torch.minimum(drafts.num_drafts, drafts.room)
    return ((drafts.token_ids >= 0) & (depths < ends[:, None])).sum(1, dtype=torch.int32)


@dataclass(frozen=True)
class Speculation:
    """A drafter and how its drafts are verified.

    Attributes:
        rates: float64 [k] on the device, for the synthetic method.
    """

    drafter: Drafter
    rows: RequestRows
    sampling_rows: SamplingRows
    method: Method
    rates: torch.Tensor | None

    def warm_up(self, dtype: torch.dtype, max_top: int) -> None:
        """Compile what verification may need, on CUDA, before graphs are captured.

        Args:
            dtype: of the target's logits.
            max_top: top tokens a request may ask for.
        """
        if self.rows.device.type != "cuda":
            return
        with compiling_together():
            compile_verification(
                self.sampling_rows,
                dtype,
                max_top,
                self.drafter.num_tokens,
                self.drafter.draft_logits,
                self.method,
                self.rates,
            )

    def drafts_of(self, batch: InputBatch) -> Drafts:
        """What a step's logit rows verify."""
        num_drafts = torch.zeros(len(batch.draw_rows), dtype=torch.int32, device=self.rows.device)
        num_drafts[: batch.num_decodes] = self.drafter.num_tokens
        first = batch.draw_positions[batch.logit_starts]
        room = (self.rows.limits[batch.draw_rows] - first).clamp(min=1)
        return Drafts(
            starts=batch.logit_starts,
            num_drafts=num_drafts,
            token_ids=self.rows.drafts[batch.draw_rows],
            room=room.to(torch.int32),
            logits=self.drafter.draft_logits,
        )

    def verify(self, logits: torch.Tensor, batch: SamplingBatch, drafts: Drafts) -> Verification:
        """The tokens that stand."""
        return verify(logits, batch, self.sampling_rows, drafts, self.method, self.rates)

    def propose(
        self,
        plan: StepPlan,
        batch: InputBatch,
        hidden: Hidden,
        num_new: torch.Tensor | None,
    ) -> None:
        """Draft for the rows that the plan says, behind the step that `batch` was."""
        num_decodes, starts = batch.num_decodes, batch.attention.query_starts.long()
        last = starts[1:] - 1
        if num_new is not None:
            accepted = num_new[:num_decodes].long() - 1
            last[:num_decodes] = starts[:num_decodes] + accepted.clamp(min=0)
        step = self._verified_step(plan, batch, hidden, last)
        self.rows.drafts[step.sampling.rows.long()] = self.drafter.propose(step)

    def _verified_step(
        self,
        plan: StepPlan,
        batch: InputBatch,
        hidden: Hidden,
        last: torch.Tensor,
    ) -> VerifiedStep:
        rows = self.rows
        draw_rows = to_device(np.flatnonzero(plan.proposes), rows.device)
        last, row_ids = last[draw_rows], batch.rows[draw_rows]
        rows_np = plan.rows[plan.proposes]
        return VerifiedStep(
            rows=batch.rows,
            input_ids=batch.input_ids,
            positions=batch.positions,
            next_ids=rows.token_ids[batch.token_rows, batch.positions + 1],
            hidden=hidden.final,
            features=hidden.features,
            attention=batch.attention,
            draw_rows=draw_rows,
            last=last,
            sampling=SamplingBatch(
                rows=row_ids.to(torch.int32),
                positions=batch.positions[last] + 2,
                rows_np=rows_np,
                needs=self.sampling_rows.needs(rows_np),
            ),
            limits=rows.limits[row_ids],
            block_tables=rows.tables_of(row_ids, plan.max_seq_len),
        )


def feature_layers_of(speculation: Speculation | None) -> Sequence[int]:
    """The target's layers whose outputs its drafter reads."""
    return () if speculation is None else speculation.drafter.feature_layers
