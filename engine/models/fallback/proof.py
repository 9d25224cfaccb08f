"""Proves that a fallback model gives transformers' logits, before it serves."""

from __future__ import annotations

import torch

from engine.attention.plain import PlainAttention
from engine.contracts.attention import AttentionInputs
from engine.contracts.model import CausalLM, ModelInputs
from engine.errors import ModelError
from engine.memory.pages import KVCache

CHUNKS = (3, 1, 1, 1, 2, 4)
"""Query tokens of each step: every kind of step, all short so that lost state shows at once."""
BLOCK_SIZE = 4
BLOCKS = (3, 1, 2)
"""The sequence's blocks, out of order."""

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Bound of the relative error of tokens' logits: of the largest in float32; of the median in
narrower types, where a token may take another expert."""


def proof_ids(vocab_size: int, device: torch.device) -> torch.Tensor:
    """The tokens of the proof's sequence, int64 [12]."""
    return (torch.arange(sum(CHUNKS), device=device) * 7919 + 13) % vocab_size


def prove_logits(model: CausalLM, ids: torch.Tensor, expected: torch.Tensor) -> None:
    """Serve ids [T] in chunks, and compare their logits with those expected [T, vocab].

    Raises:
        ModelError: they differ by more than rounding.
    """
    got = _serve_in_chunks(model, ids)
    errors = (got - expected).norm(dim=-1) / expected.norm(dim=-1)
    errors = errors[CHUNKS[0] :]  # tokens that saw others across a step
    error = float(errors.max() if model.dtype == torch.float32 else errors.median())
    if not error <= TOLERANCE[model.dtype]:
        raise ModelError(
            "it keeps state between tokens or attends in a way that is not known here: its logits "
            f"over a paged cache differ from transformers' (relative error {error:.2g})"
        )


def _serve_in_chunks(model: CausalLM, ids: torch.Tensor) -> torch.Tensor:
    device = ids.device
    cache = KVCache(model.attention_specs, len(BLOCKS) + 1, BLOCK_SIZE, model.dtype, device)
    attention = PlainAttention(model.attention_specs, cache)
    blocks = torch.tensor(BLOCKS, dtype=torch.int32, device=device)
    positions = torch.arange(len(ids), device=device)
    logits = []
    start = 0
    for num_tokens in CHUNKS:
        end = start + num_tokens
        attention.begin(AttentionInputs.of_row(blocks, BLOCK_SIZE, start, end))
        own = ids[start:end].to(torch.int32)
        hidden = model.forward(ModelInputs(own, positions[start:end], attention))
        logits.append(model.logits(hidden.final))
        start = end
    return torch.cat(logits)
