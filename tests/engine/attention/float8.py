"""Caches in float8 for tests of attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.contracts.attention import AttentionSpec
from engine.memory.pages import FP8_CACHE, LARGEST_FP8, KVCache


def in_float8(cache: KVCache, specs: Sequence[AttentionSpec]) -> KVCache:
    """A cache's keys and values in float8, under another scale for each head."""
    num_heads, device = specs[0].num_kv_heads, cache.layers[0].device
    powers = torch.arange(2.0 * num_heads).view(2, num_heads) - 4
    # A GPU's powers are inexact.
    scales = [(2.0 ** (powers - index)).to(device) for index in range(len(specs))]
    stored = KVCache(specs, cache.num_blocks, cache.block_size, cache.dtype, device, scales)
    for layer, own, scale in zip(stored.layers, cache.layers, scales, strict=True):
        values = (own.float() / scale[None, :, None, :, None]).clamp(-LARGEST_FP8, LARGEST_FP8)
        layer.view(torch.uint8).copy_(values.to(FP8_CACHE).view(torch.uint8))
    return stored
