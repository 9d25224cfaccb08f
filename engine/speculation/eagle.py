"""Drafting with an EAGLE head: features of the target in, its own outputs fed back after that."""

from __future__ import annotations

import torch

from engine.contracts.drafter import VerifiedStep
from engine.kernels.rope import Rotation, rotation_at
from engine.speculation.cache import CacheShape, DraftCache
from engine.speculation.draft_logits import DraftDraws
from engine.speculation.drafter_inputs import single_steps
from engine.speculation.eagle_heads import EagleHead


class EagleDrafter:
    """Drafter around a head of either generation.

    The head's entry at position i is made of what stands for the target's features at i and of the
    token at i + 1, and lies in the slot of position i. Entries behind a refused draft are never
    seen: the step that computes those positions writes them anew.

    Args:
        angles: the head's `rope_table`.
    """

    def __init__(
        self,
        head: EagleHead,
        angles: torch.Tensor,
        num_tokens: int,
        draws: DraftDraws,
        cache_shape: CacheShape,
    ) -> None:
        self.num_tokens = num_tokens
        self.feature_layers = head.feature_layers
        self.attention_specs = head.attention_specs
        self.draft_logits = draws.logits
        self._head = head
        self._angles = angles
        self._draws = draws
        self._cache = DraftCache(head.attention_specs, cache_shape)

    def allocate(self, num_blocks: int) -> None:
        self._cache.allocate(num_blocks)

    def propose(self, step: VerifiedStep) -> torch.Tensor:
        head, attention = self._head, self._cache.attention
        attention.begin(step.attention)
        rotation = rotation_at(self._angles, step.positions)
        outputs = head.forward(step.next_ids, head.features(step), rotation, attention)
        if not len(step.last):
            return step.next_ids.new_empty((0, self.num_tokens))
        features = outputs[step.last]
        drafts = [self._draw(features, step, 0)]
        singles = single_steps(step, 1, self.num_tokens - 1, self._cache.block_size)
        rotations = self._rotations(singles.positions)
        for depth, inputs in enumerate(singles.attention, start=1):
            attention.begin(inputs)
            features = head.forward(drafts[-1], features, rotations[depth - 1], attention)
            drafts.append(self._draw(features, step, depth))
        return torch.stack(drafts, dim=1)

    def _rotations(self, positions: torch.Tensor) -> list[Rotation]:
        """Of positions int64 [n, L], one for each of the n forwards, made at once."""
        together = rotation_at(self._angles, positions.flatten())
        width = positions.shape[1]
        split = (torch.split(part, width) for part in together)
        return [Rotation(cos, sin) for cos, sin in zip(*split, strict=True)]

    def _draw(self, features: torch.Tensor, step: VerifiedStep, depth: int) -> torch.Tensor:
        logits = self._head.logits(features)
        return self._draws(logits, step.sampling, depth, self._head.columns)
