# mypy: allow-untyped-defs, allow-incomplete-defs
"""The scan among ranks: each scans its own tiles, and all get the measures and the notes."""

from __future__ import annotations

import torch

from sampling.device.triton_support import constexpr, jit, padded_lanes, tl
from sampling.filters.cut_state import DECIDED, Brackets
from sampling.filters.scan import Scan, empty_scan, noted_room, scan
from sampling.filters.shortlist import Scratch
from sampling.kernels.logits import Source
from sampling.kernels.tile_pass import TileStats
from sampling.sharded.stages import ROWS, UNIT
from sampling.vocab_shard import VocabShard

FIELDS = 7  # words that a scan has of a tile

_FIELDS, _ROWS = constexpr(FIELDS), constexpr(ROWS)


@jit(do_not_specialize=["num_rows"])
def _merge_scans_kernel(
    gathered,
    counts,
    scratch,
    whole,
    num_rows,
    width,
    num_tiles,
    stride,
    room: tl.constexpr,
    num_ranks: tl.constexpr,
    padded_tiles: tl.constexpr,
    block: tl.constexpr,
):
    """Put the measures of an undecided row's tiles side by side, and its notes in one list."""
    i = tl.program_id(0).to(tl.int64)
    if tl.load(scratch.states + i) == DECIDED:
        return
    lane = tl.arange(0, padded_tiles)
    before = tl.full((), 0, tl.int32)
    for rank in tl.static_range(num_ranks):
        own = gathered + (rank * num_rows + i) * width
        first = rank * num_tiles // num_ranks
        inside = lane < (rank + 1) * num_tiles // num_ranks - first
        at = i * num_tiles + first + lane
        for field in tl.static_range(_FIELDS):
            words = tl.load(own + field * stride + lane, mask=inside)
            if field == _FIELDS - 1:
                words += before  # where a tile's notes begin
            tl.store(whole[field] + at, words, mask=inside)
        noted = tl.load(counts + rank * num_rows + i) - _FIELDS * stride
        for start in range(0, tl.minimum(noted, room - before), block):
            slot = start + tl.arange(0, block)
            some = (slot < noted) & (before + slot < room)
            notes = tl.load(own + _FIELDS * stride + slot, mask=some)
            tl.store(whole[_FIELDS] + i * room + before + slot, notes, mask=some)
        before += noted


@jit(do_not_specialize=["num_rows"])
def _count_kernel(num_noted, counts, num_rows, head):
    """How many words a rank sends of a row: its tiles' and its notes; -1 where it is decided."""
    i = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    noted = tl.load(num_noted + i, mask=i < num_rows, other=-1)
    tl.store(counts + i, tl.where(noted < 0, -1, noted + head), mask=i < num_rows)


def gather_scan(
    source: Source,
    stats: TileStats,
    scratch: Scratch,
    brackets: Brackets,
    shard: VocabShard,
    *,
    edited: bool,
) -> Scan:
    """Scan a rank's tiles, and gather what all found.

    Args:
        source: of the shard.
        stats: of all tiles.
        scratch, brackets, edited: as for `scan`.
    """
    num_rows, num_tiles = stats.maxima.shape
    stride, room = -(-shard.most_tiles // UNIT) * UNIT, noted_room(num_tiles)
    width, device = FIELDS * stride + room, stats.maxima.device
    words = torch.empty((num_rows, width), dtype=torch.int32, device=device)
    floats = words.view(torch.float32)
    own = Scan._make(
        (words if name.startswith(("num", "starts")) else floats)[:, field * stride :]
        for field, name in enumerate(Scan._fields)
    )
    scan(source, stats, scratch, brackets, edited=edited, found=own)
    counts = torch.empty_like(brackets.num_noted)
    _count_kernel[(-(-num_rows // ROWS),)](
        brackets.num_noted, counts, num_rows, FIELDS * stride, num_warps=1
    )
    gathered, whole = shard.gather_rows(words, counts, width), empty_scan(stats)
    _merge_scans_kernel[(num_rows,)](
        gathered.words,
        gathered.counts,
        scratch,
        Scan(*(field.view(torch.int32) for field in whole)),
        num_rows,
        width,
        num_tiles,
        stride,
        room=room,
        num_ranks=shard.exchange.size,
        padded_tiles=padded_lanes(shard.most_tiles),
        block=1024,
        num_warps=8,
    )
    return whole
