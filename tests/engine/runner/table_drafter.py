"""A drafter that needs no model: its logits depend on the newest token alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from engine.batch import RequestRows
from engine.config import ModelConfig
from engine.contracts.attention import AttentionSpec
from engine.contracts.drafter import VerifiedStep
from engine.contracts.model import CausalLM
from engine.contracts.named_weights import NamedWeights
from engine.speculation.cache import MakeAttention
from engine.speculative_config import SpeculativeConfig
from engine.startup import build, built_runner
from sampling.rows import SamplingRows
from sampling.speculative.drafting import draw_drafts


class TableDrafter:
    """Drafts from table[newest token], float32 [vocab_size, vocab_size]."""

    feature_layers: tuple[int, ...] = ()
    attention_specs: Sequence[AttentionSpec] = ()

    def __init__(
        self, config: SpeculativeConfig, table: torch.Tensor, rows: RequestRows, own: SamplingRows
    ) -> None:
        self.num_tokens = config.num_speculative_tokens
        self.num_runs = 0
        self._source, self._table, self._own = config.draft_source, table, own
        self.draft_logits: torch.Tensor | None = None
        if self._source == "gumbel":
            shape = (rows.scratch_row + 1, self.num_tokens, table.shape[1])
            self.draft_logits = torch.full(shape, torch.nan)

    def named_weights(self) -> NamedWeights:
        return NamedWeights()

    def allocate(self, num_blocks: int) -> Sequence[torch.Tensor]:
        """It has no cache."""
        return ()

    def propose(self, step: VerifiedStep) -> torch.Tensor:
        self.num_runs += 1
        if not len(step.last):
            return step.next_ids.new_empty((0, step.num_drafts))
        newest, drafts = step.next_ids[step.last].long(), []
        for depth in range(step.num_drafts):
            newest = draw_drafts(
                self._table[newest],
                step.sampling,
                self._own,
                depth,
                self._source,
                draft_logits=self.draft_logits,
            ).long()
            drafts.append(newest.int())
        return torch.stack(drafts, dim=1)


def draft_from(table: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> list[TableDrafter]:
    """Let engines draft from a table; the drafters they make, in order."""
    made: list[TableDrafter] = []

    def make(
        config: SpeculativeConfig,
        target_config: ModelConfig,
        target: CausalLM,
        rows: RequestRows,
        sampling_rows: SamplingRows,
        make_attention: MakeAttention,
    ) -> TableDrafter:
        made.append(TableDrafter(config, table, rows, sampling_rows))
        return made[-1]

    monkeypatch.setattr(built_runner, "make_drafter", make)
    # Nothing holds the drafter's weights, which a fingerprint hashes.
    nothing = SimpleNamespace(result=lambda: "")
    monkeypatch.setattr(build, "Fingerprint", lambda config, device: nothing)
    return made
