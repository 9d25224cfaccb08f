# mypy: allow-untyped-defs, allow-incomplete-defs
"""Min-p, top-k and top-p in Triton without sorting the vocabulary: the pass over a bracket.

It measures, tile by tile, what lies above the bracket, and notes the few values inside it, among
which `cut_kernels` finds the cut.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling import noise
from sampling.bracket_kernels import Brackets, load_row, under_min_p
from sampling.filter_kernels import Scratch, value_of
from sampling.logit_kernels import TILE, Source, load_raw, processed
from sampling.tile_kernels import TileStats, scale_of
from sampling.triton_support import constexpr, jit, tl, triton

NOTED = 8192  # room for values inside a row's bracket, in equal shares a tile
LEAST_NOTED = 64
SCANNED_TILES = 8  # a program's share of the pass

_SCANNED_TILES = constexpr(SCANNED_TILES)


class Scan(NamedTuple):
    """What the pass finds in each tile; masses are relative to the tile's maximum."""

    mass_above: Tensor  # float32 [n, tiles]
    num_above: Tensor  # int32 [n, tiles], of rows cut by count
    mass_allowed: Tensor  # float32 [n, tiles], of rows under a min-p
    num_inside: Tensor  # int32 [n, tiles]
    noted: Tensor  # float32 [n, tiles, share of NOTED], the values inside the bracket


@jit
def _scan_kernel(
    source,
    stats,
    scratch,
    brackets,
    scan,
    num_tiles,
    room: tl.constexpr,
    in_a_row: tl.constexpr,
    edited: tl.constexpr,
    second: tl.constexpr,
):
    programs = tl.cdiv(num_tiles, _SCANNED_TILES)  # a row
    i = (tl.program_id(0) // programs).to(tl.int64)
    if tl.load(scratch.undecided + i) != second + 1:
        return
    row = load_row(source, brackets, i, second)
    scale = scale_of(row.temperature)
    low, high = value_of(row.low), value_of(row.high)
    first = tl.program_id(0) % programs * _SCANNED_TILES
    for tile in range(first, tl.minimum(first + _SCANNED_TILES, num_tiles)):
        token_ids = tl.arange(0, TILE) + tile * TILE
        values = load_raw(source, i, token_ids, token_ids >= 0)
        if edited:
            values = processed(values, token_ids, source, i, tile, tile + 1)
        above = values > high
        inside = (values >= low) & (values <= high)
        if second:  # of the tokens equal to the limit, some are out
            allowed = (values > value_of(row.limit)) | (token_ids <= row.limit_id)
            above, inside = above & allowed, inside & allowed
        at = i * num_tiles + tile
        top = tl.load(stats.maxima + at)
        weights = tl.exp2((values - tl.where(top == float("-inf"), 0.0, top)) * scale)
        tl.store(scan.mass_above + at, tl.sum(tl.where(above, weights, 0.0), 0))
        if row.by_mass == 0:
            tl.store(scan.num_above + at, tl.sum(above.to(tl.int32), 0))
        if under_min_p(row, second):
            allowed_weights = tl.where(values >= value_of(row.limit), weights, 0.0)
            tl.store(scan.mass_allowed + at, tl.sum(allowed_weights, 0))
        words = _pack(inside, in_a_row)
        count = _num_bits(words)
        tl.store(scan.num_inside + at, tl.sum(count, 0))
        if row.low < row.high:
            slot = tl.cumsum(count, 0) - count
            to = scan.noted + at * room
            _note(source, i, tile, words, slot, to, room, in_a_row, edited)


@jit
def _pack(inside, in_a_row: tl.constexpr):
    """Which of its own values of a tile each lane of a warp finds inside, int32 [32].

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
    """Store the values that a tile's `words` tell of, each lane's from its `slot` on.

    They are read once more: for the few there are, that is a third of the work of a running
    count over the tile.
    """
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
    """How many bits of an int32 are set."""
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
    second: bool,
) -> Scan:
    """Measure and note what the bracketed rows hold; other rows are left undefined.

    Args:
        source, stats, scratch: as `head` took and gave them.
        brackets: as `bracket` gave them.
        edited, second: as for `bracket`.
    """
    num_rows, num_tiles = stats.maxima.shape

    def buffer(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(num_rows, num_tiles, *shape, dtype=dtype, device=stats.maxima.device)

    def masses(*shape: int) -> Tensor:
        return buffer(*shape, dtype=torch.float32)

    padded_tiles = max(2, triton.next_power_of_2(num_tiles))
    room = min(noise.TILE, max(LEAST_NOTED, NOTED // padded_tiles))
    found = Scan(masses(), buffer(), masses(), buffer(), masses(room))
    _scan_kernel[(triton.cdiv(num_tiles, SCANNED_TILES) * num_rows,)](
        source,
        stats,
        scratch,
        brackets,
        found,
        num_tiles,
        room=room,
        in_a_row=16 // source.logits.element_size(),  # a lane's share of one load
        edited=edited,
        second=second,
        num_warps=1,
        enable_fp_fusion=False,
    )
    return found
