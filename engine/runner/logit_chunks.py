"""The logits of many positions: how many are made at once."""

from __future__ import annotations

from collections.abc import Iterator

LOGITS_BYTES = 256 << 20
"""Size of the float32 logits held at once: of some 400 positions, for which a head's product and
its readers take a GPU as long as the host needs to launch them."""


def logit_chunks(start: int, stop: int, vocab_size: int) -> Iterator[slice]:
    """Split start:stop into slices whose float32 logits take at most `LOGITS_BYTES` each.

    Of several ranks all must split alike: `vocab_size` is that of the widest shard.
    """
    size = max(1, LOGITS_BYTES // (4 * vocab_size))
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
