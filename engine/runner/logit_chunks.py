"""Bounds how many positions go through the LM head at once, where a step reads many."""

from __future__ import annotations

from collections.abc import Iterator

LOGITS_BYTES = 64 << 20
"""Size of the float32 logits held at once."""


def logit_chunks(start: int, stop: int, vocab_size: int) -> Iterator[slice]:
    """Split start:stop into slices whose float32 logits take at most `LOGITS_BYTES` each."""
    size = max(1, LOGITS_BYTES // (4 * vocab_size))
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
