"""Draws drafts from a drafter's logits, and keeps these for verification."""

from __future__ import annotations

import torch

from engine.speculative_config import DraftSource
from sampling.batch import SamplingBatch
from sampling.rows import SamplingRows
from sampling.speculative.drafting import draw_drafts, kept_shard
from sampling.vocab_shard import VocabShard


class DraftDraws:
    """Draws drafts; owns the draft logits.

    Attributes:
        logits: float32 [max_rows + 1, k, width] for "gumbel", else None; see `Drafter`.
    """

    def __init__(self, source: DraftSource, num_tokens: int, rows: SamplingRows) -> None:
        self._source: DraftSource = source
        self._rows = rows
        self.logits: torch.Tensor | None = None
        if source == "gumbel":
            shape = (rows.max_rows, num_tokens, kept_shard(rows).width)
            self.logits = torch.zeros(shape, dtype=torch.float32, device=rows.device)

    def __call__(
        self,
        logits: torch.Tensor,
        batch: SamplingBatch,
        depth: int,
        columns: torch.Tensor | None = None,
        shard: VocabShard | None = None,
    ) -> torch.Tensor:
        """Draw the drafts int32 [L] of one depth; arguments as for `draw_drafts`."""
        return draw_drafts(
            logits,
            batch,
            self._rows,
            depth,
            self._source,
            draft_logits=self.logits,
            columns=columns,
            shard=shard,
        )
