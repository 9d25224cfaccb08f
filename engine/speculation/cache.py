"""The KV cache of a drafter: tensors of its own, with the target's block ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from engine.contracts.attention import AttentionBackend, AttentionSpec
from engine.memory.pages import KVCache

MakeAttention = Callable[[Sequence[AttentionSpec], KVCache], AttentionBackend]
"""Makes an attention backend of the target's kind for a drafter's layers and cache."""


class CacheShape(NamedTuple):
    """The facts a drafter's cache is made from."""

    block_size: int
    dtype: torch.dtype
    device: torch.device
    make_attention: MakeAttention


class DraftCache:
    """Owns a drafter's keys and values.

    Attributes:
        attention: the backend over them, from the first `allocate` on.
    """

    attention: AttentionBackend

    def __init__(self, specs: Sequence[AttentionSpec], shape: CacheShape) -> None:
        self.specs = specs
        self.block_size = shape.block_size
        self._shape = shape

    def allocate(self, num_blocks: int) -> Sequence[torch.Tensor]:
        """Replace the cache by one of `num_blocks` blocks of zeros; returns the tensors."""
        shape = self._shape
        cache = KVCache(self.specs, num_blocks, shape.block_size, shape.dtype, shape.device)
        self.attention = shape.make_attention(self.specs, cache)
        return cache.layers
