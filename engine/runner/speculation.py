"""Speculation on the device: verifying a step's drafts and proposing the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from engine.batch import Drafting, RequestRows, RowEnds, StepInputs
from engine.contracts.drafter import Drafter, VerifiedStep
from engine.contracts.model import Hidden
from engine.speculative_config import draft_counts
from sampling.batch import Drafts, SamplingBatch, Verification
from sampling.device.compiling import compiling_together
from sampling.rows import SamplingRows
from sampling.speculative.verification import Method, verify
from sampling.warm_up import compile_verification


@dataclass(frozen=True)
class Speculation:
    """Verifies a drafter's drafts and lets it propose new ones.

    Attributes:
        rates: float64 [k] on the device, acceptance rates of the synthetic method; else None.
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
            for num_drafts in draft_counts(self.drafter.num_tokens):
                compile_verification(
                    self.sampling_rows,
                    dtype,
                    max_top,
                    num_drafts,
                    self.drafter.draft_logits,
                    self.method,
                    self.rates,
                )

    def verify(self, logits: torch.Tensor, batch: SamplingBatch, drafts: Drafts) -> Verification:
        """Decide which drafts are accepted, and draw the token after them.

        Args:
            drafts: without draft logits, which are the drafter's.
        """
        drafts = drafts._replace(logits=self.drafter.draft_logits)
        return verify(logits, batch, self.sampling_rows, drafts, self.method, self.rates)

    def propose(
        self, inputs: StepInputs, drafting: Drafting, ends: RowEnds, hidden: Hidden
    ) -> None:
        """Let the drafter propose for the rows of `drafting`, whose tokens have been entered."""
        hidden = hidden.of_tokens(len(inputs.positions))
        step = VerifiedStep(
            num_drafts=drafting.num_drafts,
            rows=inputs.rows,
            input_ids=inputs.input_ids,
            positions=inputs.positions,
            next_ids=ends.next_ids,
            hidden=hidden.final,
            features=hidden.features,
            attention=inputs.attention,
            draw_rows=drafting.places,
            last=ends.last,
            sampling=SamplingBatch(
                rows=drafting.rows.to(torch.int32),
                positions=ends.positions,
                rows_np=drafting.rows_np,
                needs=drafting.needs,
            ),
            limits=ends.limits,
            block_tables=drafting.block_tables,
        )
        drafts = self.drafter.propose(step)
        none = self.rows.drafts.shape[1] - drafts.shape[1]
        self.rows.drafts.index_copy_(0, drafting.rows, F.pad(drafts, (0, none), value=-1))


def feature_layers_of(speculation: Speculation | None) -> Sequence[int]:
    """The target's layers whose outputs its drafter reads."""
    return () if speculation is None else speculation.drafter.feature_layers
