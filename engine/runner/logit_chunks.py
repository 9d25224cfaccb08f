"""The logits of many positions: how many are made at once, and whose ids they are."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sampling.shard import VocabShard

LOGITS_BYTES = 64 << 20
"""Size of the float32 logits held at once."""


def logit_chunks(start: int, stop: int, vocab_size: int) -> Iterator[slice]:
    """Split start:stop into slices whose float32 logits take at most `LOGITS_BYTES` each."""
    size = max(1, LOGITS_BYTES // (4 * vocab_size))
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def ids_to_read(shard: VocabShard, device: torch.device) -> VocabShard:
    """The ids of the logits that `rows_to_read` gives."""
    return VocabShard.whole(shard.vocab_size) if device.type == "cuda" else shard


def rows_to_read(logits: torch.Tensor, shard: VocabShard) -> torch.Tensor:
    """Logits [N, width] of a shard as what reads them takes them.

    On CUDA that is whole rows, gathered from all ranks: what reads them there is not divided.
    """
    return shard.whole_rows(logits) if logits.is_cuda else logits
