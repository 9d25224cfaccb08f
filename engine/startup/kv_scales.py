"""Finds the scales of a KV cache in float8: the checkpoint's, or by the keys of a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs
from engine.contracts.model import CausalLM, ModelInputs
from engine.memory.pages import LARGEST_FP8, KVCache
from engine.memory.states import text_states

NUM_TOKENS = 512
"""Length of the sequence; shorter where the model's context is."""
HEADROOM = 8.0
"""A key or value may be so many times the largest of the sequence before it is cut off. It costs
nothing: float8's numbers are equally dense from its largest down to 1 / 28,672 of that."""


def kv_scales(
    model: CausalLM,
    device: torch.device,
    block_size: int,
    max_model_len: int,
    stored: Sequence[torch.Tensor | None] = (),
) -> Sequence[torch.Tensor]:
    """Scales for `KVCache`, from a sequence of arbitrary tokens, the same at each start.

    A head's scale is the least power of two with which the largest of its keys (or values), times
    `HEADROOM`, is within the format; 1 where that largest is zero or no number.

    Args:
        stored: of each layer what its checkpoint has, which is taken as it is; empty for none.

    Returns:
        Of each layer float32 [2, kv_heads]; none of a model in which no layer attends.
    """
    if not model.attention_specs:
        return []
    known = [own for own in stored if own is not None]
    if known and len(known) == len(stored):
        return known
    num_tokens = min(NUM_TOKENS, max_model_len)
    num_blocks = -(-num_tokens // block_size)
    cache = KVCache(model.attention_specs, num_blocks + 1, block_size, model.dtype, device)
    _run(model, cache, num_tokens)
    found = [_scales_of(layer) for layer in cache.layers]
    own = stored or [None] * len(found)
    return [new if old is None else old for new, old in zip(found, own, strict=True)]


def _scales_of(layer: torch.Tensor) -> torch.Tensor:
    """The scales of a layer's cells [num_blocks, 2, block_size, kv_heads, head_dim]."""
    largest = layer[1:].float().abs().amax(dim=(0, 2, 4))  # the null block is left out
    exponents = torch.log2(largest * HEADROOM / LARGEST_FP8).ceil()
    return torch.exp2(torch.where(exponents.isfinite(), exponents, 0.0))


@torch.inference_mode()
def _run(model: CausalLM, cache: KVCache, num_tokens: int) -> None:
    """Run a prompt of arbitrary tokens over the cache's blocks 1, 2, ..."""
    device = cache.device
    ids = torch.arange(num_tokens, device=device) * 7919 % model.vocab_size
    positions = torch.arange(num_tokens, device=device)
    blocks = torch.arange(1, cache.num_blocks, dtype=torch.int32, device=device)
    attention = PlainAttention(model.attention_specs, cache)
    attention.begin(AttentionInputs.of_row(blocks, cache.block_size, 0, num_tokens))
    states = text_states(model.state_specs(0), device)
    inputs = ModelInputs(ids.to(torch.int32), positions, attention, states(0, num_tokens))
    model.forward(inputs)
