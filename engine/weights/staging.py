"""Memory in which tensors of an update are kept until they are written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

SPARE_BYTES = 2 << 30
"""Memory of a GPU that is left alone when received tensors are kept there."""
ALIGNMENT = 256
"""Bytes by which copies are aligned, as torch aligns tensors."""


def room_on(device: torch.device) -> int:
    """Bytes of a GPU in which tensors can be kept; what torch holds unused counts."""
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + unused - SPARE_BYTES


def copies(raws: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the bytes uint8 [num_bytes] of tensors of one device, once they are made.

    They are made in one allocation: a GPU takes longer to allocate than to copy. They are on the
    host where a GPU has too little room.
    """
    if not raws:
        return []
    device = raws[0].device
    sizes = [-(-len(raw) // ALIGNMENT) * ALIGNMENT for raw in raws]
    if device.type == "cuda" and room_on(device) < sum(sizes):
        return [raw.cpu() for raw in raws]
    whole = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    places = pairwise(accumulate(sizes, initial=0))
    parts = [whole[start:end][: len(raw)] for raw, (start, end) in zip(raws, places, strict=True)]
    for part, raw in zip(parts, raws, strict=True):
        part.copy_(raw)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # whoever sent them may overwrite them now
    return parts
