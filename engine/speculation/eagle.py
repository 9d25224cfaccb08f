"""Drafting with an EAGLE head: features of the target in, its own outputs fed back after that."""

from __future__ import annotations

import torch

from engine.speculation.base import VerifiedStep
from engine.speculation.cache import CacheShape, DraftCache
from engine.speculation.draws import DraftDraws
from engine.speculation.heads import EagleHead
from engine.speculation.steps import single_steps


class EagleDrafter:
    """Drafter around a head of either generation.

    The head's entry at position i is made of what stands for the target's features at i and of the
    token at i + 1, and lies in the slot of position i. Entries behind a refused draft are never
    seen: the step that computes those positions writes them anew.
    """

    def __init__(
        self, head: EagleHead, num_tokens: int, draws: DraftDraws, cache_shape: CacheShape
    ) -> None:
        self.num_tokens = num_tokens
        self.feature_layers = head.feature_layers
        self.attention_specs = head.attention_specs
        self.draft_logits = draws.logits
        self._head = head
        self._draws = draws
        self._cache = DraftCache(head.attention_specs, cache_shape)

    def allocate(self, num_blocks: int) -> None:
        self._cache.allocate(num_blocks)

    def propose(self, step: VerifiedStep) -> torch.Tensor:
        head, attention = self._head, self._cache.attention
        attention.begin(step.attention)
        outputs = head.forward(step.next_ids, head.features(step), step.positions, attention)
        if not len(step.last):
            return step.next_ids.new_empty((0, self.num_tokens))
        features = outputs[step.last]
        drafts = [self._draw(features, step, 0)]
        inputs = single_steps(step, 1, self.num_tokens - 1, self._cache.block_size)
        for depth, (positions, own) in enumerate(inputs, start=1):
            attention.begin(own)
            features = head.forward(drafts[-1], features, positions, attention)
            drafts.append(self._draw(features, step, depth))
        return torch.stack(drafts, dim=1)

    def _draw(self, features: torch.Tensor, step: VerifiedStep, depth: int) -> torch.Tensor:
        logits = self._head.logits(features)
        return self._draws(logits, step.sampling, depth, self._head.columns)
