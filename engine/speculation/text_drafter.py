"""What drafters that read texts have in common: none has weights, a cache or draft logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.contracts.attention import AttentionSpec
from engine.contracts.named_weights import NamedWeights


class TextDrafter:
    """The part of a `Drafter` that is the same for all that read texts.

    Args:
        history: int32 [max_rows + 1, max_len], the engine's token history.
    """

    feature_layers: tuple[int, ...] = ()
    attention_specs: Sequence[AttentionSpec] = ()
    draft_logits: torch.Tensor | None = None

    def __init__(self, num_tokens: int, history: torch.Tensor) -> None:
        self.num_tokens = num_tokens
        self._history = history

    def named_weights(self) -> NamedWeights:
        return NamedWeights()

    def allocate(self, num_blocks: int) -> Sequence[torch.Tensor]:
        return ()
