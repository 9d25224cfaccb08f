# mypy: allow-untyped-defs, allow-incomplete-defs
"""Device functions for the mass that a cut keeps of each tile, which the race needs.

Tiles note their values in no certain order, but each its own always in the same, so a tile's mass
does not depend on which tile came first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sampling.device.triton_support import constexpr, jit, tl
from sampling.filters.cut_state import LAST_ID, first_inside, last_inside
from sampling.kernels.logits import TILE, is_held, load_raw, processed
from sampling.kernels.order import order, value_of

_RANKS = constexpr(16)  # notes of every tile looked at together


class ScannedTiles(NamedTuple):
    """The scan's findings in a row's tiles, vectors of [padded_tiles]; see `scan.Scan`."""

    maxima: Any
    mass_above: Any
    num_high: Any
    num_low: Any
    num_inside: Any
    starts: Any


@jit
def load_scanned_tiles(scan, stats, row, i, num_tiles, padded_tiles: tl.constexpr):
    """Load the `ScannedTiles` of logit row i."""
    tiles = tl.arange(0, padded_tiles)
    at, mask = i * num_tiles + tiles, tiles < num_tiles
    tied = tiles < tl.where(row.tied != 0, num_tiles, 0)
    noted = tiles < tl.where(first_inside(row) <= last_inside(row), num_tiles, 0)
    return ScannedTiles(
        tl.load(stats.maxima + at, mask=mask, other=float("-inf")),
        tl.load(scan.mass_above + at, mask=mask, other=0.0),
        tl.load(scan.num_high + at, mask=tied, other=0),
        tl.load(scan.num_low + at, mask=tied, other=0),
        tl.load(scan.num_inside + at, mask=noted, other=0),
        tl.load(scan.starts + at, mask=noted, other=0),
    )


@jit
def kept_masses(
    source,
    scan,
    row,
    i,
    tiles,
    cut,
    needed,
    scale,
    room: tl.constexpr,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
):
    """The mass of what the cut keeps of each tile, and the last id kept that equals the cut."""
    masses, num_equal = tiles.mass_above, tl.zeros_like(tiles.num_inside)
    maxima = tiles.maxima[:, None]
    for first in range(0, tl.max(tiles.num_inside, 0), _RANKS):
        rank = first + tl.arange(0, _RANKS)[None, :]
        slot = tiles.starts[:, None] + rank
        mask = (rank < tiles.num_inside[:, None]) & (slot < room)
        values = tl.load(scan.noted + i * room + slot, mask=mask, other=float("-inf"))
        weights = tl.exp2((values - maxima) * scale)
        masses += tl.sum(tl.where(mask & (order(values) > cut), weights, 0.0), 1)
        num_equal += tl.sum((mask & (order(values) == cut)).to(tl.int32), 1)
    if row.tied:
        num_equal = tl.where(cut == row.low, tiles.num_low, num_equal)
        num_equal = tl.where(cut == row.high, tiles.num_high, num_equal)
    num_high = tl.where(cut < row.high, tiles.num_high, 0)
    masses += _mass_of(num_high, row.high, tiles.maxima, scale)
    num_kept, last_id = _kept_equal(source, row, i, cut, needed, num_equal, padded_tiles, edited)
    return masses + _mass_of(num_kept, cut, tiles.maxima, scale), last_id


@jit
def _mass_of(number, orders, maxima, scale):
    """The mass of `number` tokens of one order in each tile, relative to its maximum."""
    mass = number * tl.exp2((value_of(orders) - maxima) * scale)
    return tl.where(number > 0, mass, 0.0)


@jit
def _kept_equal(
    source, row, i, cut, needed, num_equal, padded_tiles: tl.constexpr, edited: tl.constexpr
):
    """Count the first `needed` tokens equal to the cut in each tile; return the last id too."""
    tiles = tl.arange(0, padded_tiles)
    ends = tl.cumsum(num_equal, 0)
    kept = tl.minimum(tl.maximum(needed - (ends - num_equal), 0.0), num_equal)
    last_id = tl.where(cut == row.limit, row.limit_id, LAST_ID)
    if needed < tl.max(ends, 0):
        tile = tl.min(tl.where(ends >= needed, tiles, padded_tiles - 1), 0)
        rank = tl.sum(tl.where(tiles == tile, kept, 0.0), 0)
        last_id = _equal_id(source, i, tile, cut, rank, edited)
    return kept.to(tl.float32), last_id


@jit
def _equal_id(source, i, tile, cut, rank, edited: tl.constexpr):
    """The id of a tile's `rank`-th token equal to the cut; its last id where it is not held."""
    token_ids = tl.arange(0, TILE) + tile * TILE
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        values = processed(values, token_ids, source, i, tile, tile + 1)
    equal = order(values) == cut
    found = equal & (tl.cumsum(equal.to(tl.int32), 0) == rank.to(tl.int32))
    found_id = tl.min(tl.where(found, token_ids, LAST_ID), 0)
    return tl.where(is_held(source, tile), found_id, tile * TILE + TILE - 1)


@jit
def store_cut(stats, cuts, i, cut, last_id, masses, num_tiles, padded_tiles: tl.constexpr):
    """Store the cut of logit row i and the masses that it keeps."""
    tiles = tl.arange(0, padded_tiles)
    tl.store(stats.masses + i * num_tiles + tiles, masses, mask=tiles < num_tiles)
    tl.store(cuts.thresholds + i, value_of(cut))
    tl.store(cuts.last_ids + i, last_id)
