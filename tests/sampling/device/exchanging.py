"""Exchanges between emulated ranks, for tests."""

from __future__ import annotations

import torch

from sampling.device.exchange import MAX_PACKED, NUM_PROGRAMS, Mailboxes, letter_bytes


def make_mailboxes(num_ranks: int, where: str) -> list[Mailboxes]:
    """Each rank's view of the same buffers."""
    size = letter_bytes(num_ranks) // 4
    letters = tuple(torch.zeros(size, dtype=torch.int32, device=where) for _ in range(num_ranks))
    packed = tuple(
        torch.zeros(2 * num_ranks * MAX_PACKED, dtype=torch.int64, device=where)
        for _ in range(num_ranks)
    )
    reported = tuple(
        torch.zeros((NUM_PROGRAMS, num_ranks), dtype=torch.int32, device=where)
        for _ in range(num_ranks)
    )
    return [
        Mailboxes(
            letters, packed, reported, torch.zeros(NUM_PROGRAMS, dtype=torch.int32, device=where)
        )
        for _ in range(num_ranks)
    ]
