"""Drafts with a smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from engine.contracts.attention import AttentionInputs
from engine.contracts.drafter import VerifiedStep
from engine.contracts.model import CausalLM, ModelInputs
from engine.contracts.named_weights import NamedWeights
from engine.speculation.cache import CacheShape, DraftCache
from engine.speculation.draft_logits import DraftDraws
from engine.speculation.drafter_inputs import single_steps, slots_at


class DraftModelDrafter:
    """The `Drafter` around a `CausalLM`.

    Its cache holds every token of a row at the token's own position. A step computes the target's
    tokens, accepted or not, and the newest one in one forward; entries after a refused draft are
    written anew by the step that computes those positions again.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(
        self, model: CausalLM, num_tokens: int, draws: DraftDraws, cache_shape: CacheShape
    ) -> None:
        self.num_tokens = num_tokens
        self.attention_specs = model.attention_specs
        self.draft_logits = draws.logits
        self._model = model
        self._draws = draws
        self._cache = DraftCache(model.attention_specs, cache_shape)

    def named_weights(self) -> NamedWeights:
        return self._model.named_weights()

    def allocate(self, num_blocks: int) -> Sequence[torch.Tensor]:
        return self._cache.allocate(num_blocks)

    def propose(self, step: VerifiedStep) -> torch.Tensor:
        model, attention = self._model, self._cache.attention
        inputs = with_newest(step, self._cache.block_size)
        attention.begin(inputs.attention)
        own = ModelInputs(inputs.input_ids, inputs.positions, attention)
        hidden = model.forward(own).final
        if not len(step.last):
            return step.next_ids.new_empty((0, step.num_drafts))
        drafts = [self._draws(model.logits(hidden[inputs.newest]), step.sampling, 0)]
        singles = single_steps(step, 2, step.num_drafts - 1, self._cache.block_size)
        for depth, begun in enumerate(singles.attention, start=1):
            attention.begin(begun)
            own = ModelInputs(drafts[-1], singles.positions[depth - 1], attention)
            hidden = model.forward(own).final
            drafts.append(self._draws(model.logits(hidden), step.sampling, depth))
        return torch.stack(drafts, dim=1)


class NewestInputs(NamedTuple):
    """Inputs of T + R tokens: the target's, and after each row's the one that follows them.

    Attributes:
        input_ids: int32 [T + R]. positions: int64 [T + R].
        newest: int64 [L], index of the newest token of each row that drew.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    newest: torch.Tensor
    attention: AttentionInputs


def with_newest(step: VerifiedStep, block_size: int) -> NewestInputs:
    """Make inputs in which a row's tokens are its first one and then the successor of each.

    The successor of the last token of a row that did not draw, and one at the row's limit, go to
    the null block.
    """
    old, device = step.attention, step.positions.device
    num_rows = len(old.seq_lens)
    rows = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
    starts = old.query_starts + rows
    index = torch.arange(len(step.positions) + num_rows, dtype=torch.int32, device=device)
    row = torch.searchsorted(starts[1:], index, right=True)
    before = index - row - 1  # in the target's tokens; of a row's first, one of another row
    is_first = index == starts[row]
    is_extra = index == starts[row + 1] - 1
    source = before + is_first
    input_ids = torch.where(is_first, step.input_ids[source], step.next_ids[source])
    positions = step.positions[source] + ~is_first
    slots = old.slots[(index - row).clamp(max=len(old.slots) - 1)]
    extra = _extra_slots(step, block_size)
    attention = replace(
        old,
        query_starts=starts,
        query_starts_np=old.query_starts_np + np.arange(num_rows + 1).astype(np.int32),
        seq_lens=old.seq_lens + 1,
        slots=torch.where(is_extra, extra[row], slots),
        seq_lens_np=old.seq_lens_np + 1,
        max_query_len=old.max_query_len + 1,
        decode_len=old.decode_len + 1,
    )
    return NewestInputs(input_ids, positions, step.last + step.draw_rows + 1, attention)


def _extra_slots(step: VerifiedStep, block_size: int) -> torch.Tensor:
    """Slots int64 [R] of the positions after the rows' tokens; 0 for rows that did not draw."""
    ends = step.attention.seq_lens[step.draw_rows].to(torch.int64)[:, None]
    slots = slots_at(step.block_tables, ends, step.limits[:, None], block_size)
    extra = torch.zeros(len(step.attention.seq_lens), dtype=torch.int64, device=ends.device)
    return extra.index_copy_(0, step.draw_rows, slots[:, 0])
