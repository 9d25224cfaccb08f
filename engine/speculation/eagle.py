"""Drafts with an EAGLE head, fed with the target's features first and then with its outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.contracts.drafter import VerifiedStep
from engine.contracts.heads import Rotation
from engine.contracts.named_weights import NamedWeights
from engine.models.layers.layer import LayerInputs
from engine.speculation.cache import CacheShape, DraftCache
from engine.speculation.draft_logits import DraftDraws
from engine.speculation.drafter_inputs import single_steps
from engine.speculation.eagle_heads import EagleHead


class EagleDrafter:
    """The `Drafter` around an EAGLE head of either generation.

    The EAGLE head's entry at position i is made from the target's features at i, or the EAGLE
    head's own output in their place, and from the token at i + 1; it lies in the slot of position
    i. Entries after a refused draft are never seen: the step that computes those positions writes
    them anew.

    Args:
        angles: the EAGLE head's `rope_table`.
    """

    def __init__(
        self,
        eagle_head: EagleHead,
        angles: torch.Tensor,
        num_tokens: int,
        draws: DraftDraws,
        cache_shape: CacheShape,
    ) -> None:
        self.num_tokens = num_tokens
        self.feature_layers = eagle_head.feature_layers
        self.attention_specs = eagle_head.attention_specs
        self.draft_logits = draws.logits
        self._eagle_head = eagle_head
        self._angles = angles
        self._draws = draws
        self._cache = DraftCache(eagle_head.attention_specs, cache_shape)

    def named_weights(self) -> NamedWeights:
        return self._eagle_head.named

    def allocate(self, num_blocks: int) -> Sequence[torch.Tensor]:
        return self._cache.allocate(num_blocks)

    def propose(self, step: VerifiedStep) -> torch.Tensor:
        eagle_head, attention = self._eagle_head, self._cache.attention
        attention.begin(step.attention)
        inputs = LayerInputs(attention, [Rotation(self._angles, step.positions)])
        outputs = eagle_head.forward(step.next_ids, eagle_head.features(step), inputs)
        if not len(step.last):
            return step.next_ids.new_empty((0, step.num_drafts))
        features = outputs[step.last]
        drafts = [self._draw(features, step, 0)]
        singles = single_steps(step, 1, step.num_drafts - 1, self._cache.block_size)
        for depth, own in enumerate(singles.attention, start=1):
            attention.begin(own)
            inputs = LayerInputs(attention, [Rotation(self._angles, singles.positions[depth - 1])])
            features = eagle_head.forward(drafts[-1], features, inputs)
            drafts.append(self._draw(features, step, depth))
        return torch.stack(drafts, dim=1)

    def _draw(self, features: torch.Tensor, step: VerifiedStep, depth: int) -> torch.Tensor:
        head = self._eagle_head
        return self._draws(head.logits(features), step.sampling, depth, head.columns, head.shard)
