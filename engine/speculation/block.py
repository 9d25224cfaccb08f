"""Drafts a block of tokens in one forward of a head over the target's features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from engine.contracts.attention import AttentionInputs
from engine.contracts.drafter import VerifiedStep
from engine.contracts.heads import Rotation
from engine.contracts.named_weights import NamedWeights
from engine.speculation.block_drafts import BlockDrafts
from engine.speculation.block_head import BlockHead, BlockTokens
from engine.speculation.cache import CacheShape, DraftCache
from engine.speculation.draft_logits import DraftDraws
from engine.speculation.drafter_inputs import slots_at
from sampling.vocab_shard import VocabShard


@dataclass(frozen=True)
class LoadedBlockHead:
    """A head that drafts in blocks, with what turns its hidden states into drafts.

    Attributes:
        mask_token_id, anchored: as of `BlockConfig`.
        angles: its `rope_table`.
        columns, shard: of its logits, as of `EagleHead`.
        named: its weights.
    """

    head: BlockHead
    drafts: BlockDrafts
    mask_token_id: int
    anchored: bool
    angles: torch.Tensor
    columns: torch.Tensor | None
    shard: VocabShard
    named: NamedWeights


class BlockDrafter:
    """The `Drafter` around a head that drafts in blocks.

    The cache holds the target's features at each position, up to the newest token, whose features
    the next step brings. The block begins with that token; its keys and values lie in the slots of
    its positions, which belong to nobody else, and are replaced or never seen again.
    """

    def __init__(
        self, loaded: LoadedBlockHead, num_tokens: int, draws: DraftDraws, cache_shape: CacheShape
    ) -> None:
        self.num_tokens = num_tokens
        self.feature_layers = loaded.head.feature_layers
        self.attention_specs = loaded.head.attention_specs
        self.draft_logits = draws.logits
        self._loaded = loaded
        self._draws = draws
        self._cache = DraftCache(loaded.head.attention_specs, cache_shape)

    def named_weights(self) -> NamedWeights:
        return self._loaded.named

    def allocate(self, num_blocks: int) -> Sequence[torch.Tensor]:
        return self._cache.allocate(num_blocks)

    def propose(self, step: VerifiedStep) -> torch.Tensor:
        loaded, attention = self._loaded, self._cache.attention
        assert step.features is not None
        attention.begin_storing(step.attention.slots)
        loaded.head.store(step.features, Rotation(loaded.angles, step.positions), attention)
        if not len(step.last):
            return step.next_ids.new_empty((0, step.num_drafts))
        newest = step.next_ids[step.last]
        block = self._block(step, newest)
        attention.begin(block.attention)
        hidden = loaded.head.forward(block.tokens, attention)[block.drafted]

        def draw(logits: torch.Tensor, depth: int) -> torch.Tensor:
            return self._draws(logits, step.sampling, depth, loaded.columns, loaded.shard)

        return torch.stack(loaded.drafts(hidden, newest, draw), dim=1)

    def _block(self, step: VerifiedStep, newest: torch.Tensor) -> _Block:
        """The tokens of L blocks: the newest and masks, as many as k drafts need.

        A block has no masks beyond its row's limit. Tokens before the block fill their places:
        these are written to the null block, and nothing reads what they become.
        """
        loaded, size = self._loaded, self._cache.block_size
        num_rows, device = len(step.last), step.last.device
        width = self.num_tokens + (not loaded.anchored)
        first = step.positions[step.last] + 1
        ends = torch.minimum(first + width, step.limits)
        columns = torch.arange(width, device=device)
        positions = (ends - width)[:, None] + columns  # [L, w]
        places = positions - first[:, None]
        is_newest = places == 0
        slots = slots_at(step.block_tables, positions.clamp(min=0), step.limits[:, None], size)
        cut = (first + width - ends)[:, None]
        own = (columns[: step.num_drafts] + (not loaded.anchored) + cut).clamp(max=width - 1)
        rows = torch.arange(num_rows, device=device)[:, None] * width
        input_ids = torch.where(is_newest, newest[:, None], loaded.mask_token_id)
        return _Block(
            BlockTokens(
                input_ids=input_ids.to(torch.int32).flatten(),
                is_mask=~is_newest.view(-1, 1),
                places=places.view(-1, 1),
                rotation=Rotation(loaded.angles, positions.clamp(min=0).flatten()),
            ),
            _attention(step, slots.masked_fill(places < 0, 0), ends),
            drafted=(rows + own).T,
        )


class _Block(NamedTuple):
    """The tokens of L blocks, their attention, and where the drafts' hidden states are [k, L]."""

    tokens: BlockTokens
    attention: AttentionInputs
    drafted: torch.Tensor


def _attention(step: VerifiedStep, slots: torch.Tensor, seq_lens: torch.Tensor) -> AttentionInputs:
    """The inputs of blocks with slots int64 [L, w] that see keys up to `seq_lens` int64 [L]."""
    num_rows, width = slots.shape
    starts_np = np.arange(num_rows + 1, dtype=np.int32) * width
    bounds_np = step.attention.seq_lens_np
    if len(bounds_np) != num_rows:  # which of the rows drew is known on the device alone
        bounds_np = np.full(num_rows, step.attention.max_seq_len, dtype=np.int32)
    return AttentionInputs(
        query_starts=torch.arange(num_rows + 1, dtype=torch.int32, device=slots.device) * width,
        query_starts_np=starts_np,
        seq_lens=seq_lens.to(torch.int32),
        block_tables=step.block_tables,
        slots=slots.flatten(),
        seq_lens_np=bounds_np + width,
        max_query_len=width,
        decode_len=width,
    )
