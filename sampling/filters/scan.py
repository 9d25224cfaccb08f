# mypy: allow-untyped-defs, allow-incomplete-defs
"""The scan, second step of a turn: one pass over a row measures it against its bracket.

It measures, tile by tile, what lies above the bracket, and notes the few values inside it, among
which `filters.cut` finds the cut.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling import noise
from sampling.device.triton_support import jit, padded_lanes, tl, triton
from sampling.filters.cut_state import (
    DECIDED,
    LAST_ID,
    NOTED,
    Brackets,
    first_inside,
    higher,
    last_inside,
    load_row,
    under_min_p,
)
from sampling.filters.shortlist import Scratch
from sampling.kernels.logits import TILE, Source, global_tile, load_raw, processed
from sampling.kernels.order import value_of
from sampling.kernels.tile_pass import TileStats, scale_of

# Programs, of one warp each: twice as many as run at once, since some rows' have nothing to do.
PROGRAMS = 8192


class Scan(NamedTuple):
    """The measures of each tile and the values noted; masses are relative to the tile's maximum.

    Those of one rank's tiles may have any row stride.
    """

    mass_above: Tensor  # float32 [n, tiles]
    num_above: Tensor  # int32 [n, tiles], of rows cut by count
    mass_allowed: Tensor  # float32 [n, tiles], of rows under a min-p
    num_high: Tensor  # int32 [n, tiles], of tied rows: how many equal the bracket's high
    num_low: Tensor  # int32 [n, tiles], and its low, if that is another
    num_inside: Tensor  # int32 [n, tiles]
    starts: Tensor  # int32 [n, tiles], where the first of them is in `noted`
    noted: Tensor  # float32 [n, room], the values inside the bracket, tile by tile


@jit(do_not_specialize=["share"])
def _scan_kernel(
    source,
    stats,
    scratch,
    brackets,
    scan,
    num_tiles,
    own_tiles,
    tile_stride,
    noted_stride,
    share,
    room: tl.constexpr,
    in_a_row: tl.constexpr,
    edited: tl.constexpr,
):
    programs = tl.cdiv(own_tiles, share)  # a row
    i = (tl.program_id(0) // programs).to(tl.int64)
    state = tl.load(scratch.states + i)
    if state == DECIDED:
        return
    row = load_row(source, brackets, i, state)
    scale = scale_of(row.temperature)
    first = tl.program_id(0) % programs * share
    for own_tile in range(first, tl.minimum(first + share, own_tiles)):
        tile = global_tile(source, own_tile)
        token_ids = tl.arange(0, TILE) + tile * TILE
        values = load_raw(source, i, token_ids, token_ids < source.vocab_size)
        if edited:
            values = processed(values, token_ids, source, i, tile, tile + 1)
        top = tl.load(stats.maxima + i * num_tiles + tile)
        at = i * tile_stride + own_tile
        if row.limit_id != LAST_ID:  # of the tokens equal to the limit, some are out
            allowed = (values != value_of(row.limit)) | (token_ids <= row.limit_id)
            values = tl.where(allowed, values, float("-inf"))
        inside = _measure(scan, row, values, top, scale, at)
        if first_inside(row) <= last_inside(row):
            words = _pack(inside, in_a_row)
            count = _num_bits(words)
            total = tl.sum(count, 0)
            tl.store(scan.num_inside + at, total)
            if total > 0:
                start = tl.atomic_add(brackets.num_noted + i, total, sem="relaxed")
                tl.store(scan.starts + at, start)
                slot = tl.cumsum(count, 0) - count + start
                to = scan.noted + i * noted_stride
                _note(source, i, tile, words, slot, to, room, in_a_row, edited)


@jit
def _measure(scan, row, values, top, scale, at):
    """Store a tile's measures and return which of its values lie inside the bracket.

    What few rows need is computed again, by a different expression than for all rows: a compiler
    that saw the same expression twice would keep its value in 32 registers for all rows.
    """
    low, high = value_of(row.low), value_of(row.high)
    top = tl.where(top == float("-inf"), 0.0, top)
    weights = tl.exp2((values - top) * scale)
    tl.store(scan.mass_above + at, tl.sum(tl.where(values > high, weights, 0.0), 0))
    if row.by_mass == 0:
        num_above = tl.sum((values >= value_of(higher(row.high))).to(tl.int32), 0)
        tl.store(scan.num_above + at, num_above)
    if under_min_p(row):
        weights = tl.exp2((top - values) * -scale)
        allowed_weights = tl.where(values >= value_of(row.limit), weights, 0.0)
        tl.store(scan.mass_allowed + at, tl.sum(allowed_weights, 0))
    if row.tied:
        num_low = tl.sum((values == low).to(tl.int32), 0)
        tl.store(scan.num_low + at, tl.where(low < high, num_low, 0))
        tl.store(scan.num_high + at, tl.sum((values == high).to(tl.int32), 0))
    return (values >= value_of(first_inside(row))) & (values <= value_of(last_inside(row)))


@jit
def _pack(inside, in_a_row: tl.constexpr):
    """Pack which of a tile's values lie inside into one word a lane of the warp, int32 [32].

    A lane loads `in_a_row` neighbours in each of several rounds; they are its word's bits.
    """
    rounds: tl.constexpr = TILE // 32 // in_a_row
    bit = tl.arange(0, rounds)[:, None, None] * in_a_row + tl.arange(0, in_a_row)[None, None, :]
    bits = tl.where(tl.reshape(inside, (rounds, 32, in_a_row)), tl.full((), 1, tl.int32) << bit, 0)
    return tl.sum(tl.sum(bits, 2), 0)


@jit
def _note(
    source,
    i,
    tile,
    words,
    slot,
    to,
    room: tl.constexpr,
    in_a_row: tl.constexpr,
    edited: tl.constexpr,
):
    """Store the values that a tile's packed `words` mark, each lane's from its `slot` on.

    They are read once more: for the few there are, that is a third of the work of a running
    count over the tile.
    """
    words = tl.where(slot < room, words, 0)
    while tl.max((words != 0).to(tl.int32), 0) != 0:
        lowest = words & -words
        place = _num_bits(lowest - 1)
        lane = tl.arange(0, 32)
        token_ids = place // in_a_row * (32 * in_a_row) + lane * in_a_row + place % in_a_row
        token_ids += tile * TILE
        values = load_raw(source, i, token_ids, words != 0)
        if edited:
            values = processed(values, token_ids, source, i, tile, tile + 1)
        tl.store(to + slot, values, mask=(words != 0) & (slot < room))
        slot += 1
        words ^= lowest


@jit
def _num_bits(words):
    """The number of bits set in an int32."""
    words = words - ((words >> 1) & 0x55555555)
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F
    return ((words * 0x01010101) >> 24) & 0xFF


def scan(
    source: Source,
    stats: TileStats,
    scratch: Scratch,
    brackets: Brackets,
    *,
    edited: bool,
    found: Scan | None = None,
) -> Scan:
    """Measure the bracketed rows and note the values inside; other rows are left undefined.

    The tiles of a row note their values in no certain order among the tiles; each tile's own
    values are together and always in the same order.

    Args:
        source, stats, scratch: as `shortlist` took and gave them.
        brackets: as `bracket` gave them.
        edited: as for `tile_pass`.
        found: what the measures of the source's tiles are written to; None allocates it.
    """
    num_rows, num_tiles = stats.maxima.shape
    own_tiles = source.num_tiles
    found = found or empty_scan(stats)
    share = triton.cdiv(own_tiles, max(1, PROGRAMS // num_rows))  # tiles a program
    _scan_kernel[(triton.cdiv(own_tiles, share) * num_rows,)](
        source,
        stats,
        scratch,
        brackets,
        found,
        num_tiles,
        own_tiles,
        found.starts.stride(0),
        found.noted.stride(0),
        share,
        room=found.noted.shape[1],
        in_a_row=16 // source.logits.element_size(),  # a lane's share of one load
        edited=edited,
        num_warps=1,
        maxnreg=128 if edited else 64,  # 64: as many programs as a multiprocessor takes
        enable_fp_fusion=False,
    )
    return found


def empty_scan(stats: TileStats) -> Scan:
    """Allocate what a scan of all tiles of `stats` finds."""
    num_rows, num_tiles = stats.maxima.shape

    def buffer(dtype: torch.dtype, columns: int = num_tiles) -> Tensor:
        return torch.empty((num_rows, columns), dtype=dtype, device=stats.maxima.device)

    return Scan(
        mass_above=buffer(torch.float32),
        num_above=buffer(torch.int32),
        mass_allowed=buffer(torch.float32),
        num_high=buffer(torch.int32),
        num_low=buffer(torch.int32),
        num_inside=buffer(torch.int32),
        starts=buffer(torch.int32),
        noted=buffer(torch.float32, noted_room(num_tiles)),
    )


def noted_room(num_tiles: int) -> int:
    """How many values are noted of a row of so many tiles."""
    return min(NOTED, padded_lanes(num_tiles) * noise.TILE)
