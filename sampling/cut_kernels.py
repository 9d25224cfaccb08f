# mypy: allow-untyped-defs, allow-incomplete-defs
"""Min-p, top-k and top-p in Triton without sorting the vocabulary: the cut within a bracket.

It is found among the values that `scan_kernels` has noted. The measures prove the bracket right:
where it was wrong, or a tile holds too many values of it, the row stays undecided for
`search_kernels`.
"""

from __future__ import annotations

from sampling.bracket_kernels import Brackets, load_row, under_min_p
from sampling.filter_kernels import LAST_ID, Scratch, order, value_of
from sampling.logit_kernels import TILE, Source, load_raw, processed
from sampling.race_kernels import Cuts
from sampling.scan_kernels import NOTED, scan
from sampling.tile_kernels import TileStats, scale_of
from sampling.triton_support import constexpr, jit, tl, triton

_NOTHING = constexpr(-2147483647)  # the order of a NaN, below all others


@jit
def _measured(
    scan, stats, row, i, factors, num_tiles, padded_tiles: tl.constexpr, second: tl.constexpr
):
    """The measure above the bracket, and the target."""
    tiles = tl.arange(0, padded_tiles)
    mask = tiles < num_tiles
    at = i * num_tiles + tiles
    if row.by_mass:
        above = tl.sum(tl.load(scan.mass_above + at, mask=mask, other=0.0) * factors, 0)
        masses = tl.load(stats.masses + at, mask=mask, other=0.0)
        if under_min_p(row, second):
            masses = tl.load(scan.mass_allowed + at, mask=mask, other=0.0)
        target = row.top_p * tl.sum(masses * factors, 0)
    else:
        num_above = tl.load(scan.num_above + at, mask=mask, other=0)
        above = tl.sum(num_above, 0).to(tl.float64)
        target = row.top_k.to(tl.float64)
    return above, target


@jit
def _noted(scan, row, i, peak, scale, num_tiles, padded_tiles: tl.constexpr, room: tl.constexpr):
    """The orders noted, flat, and their measures relative to the highest there may be."""
    slot = tl.arange(0, padded_tiles * room)
    tile = slot // room
    num_inside = tl.load(scan.num_inside + i * num_tiles + tile, mask=tile < num_tiles, other=0)
    noted = slot % room < tl.where(row.low < row.high, num_inside, 0)
    at = scan.noted + i * num_tiles * room + slot
    orders = tl.where(noted, order(tl.load(at, mask=noted, other=0.0)), _NOTHING)
    return orders, tl.where(noted, tl.exp2((value_of(orders) - peak) * scale), 0.0)


@jit
def _noted_cut(orders, weights, low, high, missing):
    """The highest order, not below `low`, at which the noted weights reach what is missing, and
    what is missing then of the tokens equal to it."""
    while low < high:
        middle = (low.to(tl.int64) + (high.to(tl.int64) - low + 1) // 2).to(tl.int32)
        reached = tl.sum(tl.where(orders >= middle, weights, 0.0), 0) >= missing
        low = tl.where(reached, middle, low)
        high = tl.where(reached, high, middle - 1)
    return low, missing - tl.sum(tl.where(orders > low, weights, 0.0), 0)


@jit
def _keep_equal(
    source, row, i, cut, needed, num_equal, padded_tiles: tl.constexpr, edited: tl.constexpr
):
    """Keep the first `needed` tokens equal to the cut: how many in each tile, and the last id."""
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
def _finish_kernel(
    source,
    stats,
    cuts,
    scratch,
    brackets,
    scan,
    num_tiles,
    padded_tiles: tl.constexpr,
    room: tl.constexpr,
    edited: tl.constexpr,
    second: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    if tl.load(scratch.undecided + i) != second + 1:
        return
    row = load_row(source, brackets, i, second)
    tiles = tl.arange(0, padded_tiles)
    mask = tiles < num_tiles
    at = i * num_tiles + tiles
    maxima = tl.load(stats.maxima + at, mask=mask, other=float("-inf"))
    masses = tl.load(scan.mass_above + at, mask=mask, other=0.0)
    num_inside = tl.load(scan.num_inside + at, mask=mask, other=0)
    if row.low > row.high:  # min-p alone: all is above
        tl.store(stats.masses + at, masses, mask=mask)
        _decide(cuts, scratch, i, row.limit, row.limit_id, 0)
        return
    wide = row.low < row.high
    top, peak = tl.max(maxima, 0), value_of(row.high)
    factors = tl.exp((maxima - top).to(tl.float64) / row.temperature)
    above, target = _measured(scan, stats, row, i, factors, num_tiles, padded_tiles, second)
    unit = tl.exp((peak - top).to(tl.float64) / row.temperature)
    unit = tl.where(row.by_mass, unit, 1.0)
    scale = tl.where(row.by_mass, scale_of(row.temperature), 0.0)
    orders, weights = _noted(scan, row, i, peak, scale, num_tiles, padded_tiles, room)
    inside = tl.where(wide, tl.sum(weights, 0), tl.sum(num_inside, 0).to(tl.float32))
    most = above + inside * unit
    if row.low <= row.limit:  # nothing lower may be kept
        target = tl.minimum(target, most)
    crowded = (tl.max(num_inside, 0) > room) & wide
    if (target <= above) | (target > most) | crowded:
        tl.store(scratch.undecided + i, 1)
        return

    cut, missing = _noted_cut(orders, weights, row.low, row.high, (target - above) / unit)
    needed = tl.ceil(missing / tl.exp2((value_of(cut) - peak) * scale))
    num_equal = tl.reshape((orders == cut).to(tl.int32), (padded_tiles, room))
    num_equal = tl.where(wide, tl.sum(num_equal, 1), num_inside)
    kept_equal, last_id = _keep_equal(source, row, i, cut, needed, num_equal, padded_tiles, edited)
    scale = scale_of(row.temperature)
    if row.by_mass == 0:  # they weighed 1 each
        weights = tl.exp2((value_of(orders) - peak) * scale)
    weights = tl.where(orders > cut, weights, 0.0)
    kept = tl.sum(tl.reshape(weights, (padded_tiles, room)), 1)
    kept += kept_equal * tl.exp2((value_of(cut) - peak) * scale)
    masses += tl.where(kept > 0, kept * tl.exp2((peak - maxima) * scale), 0.0)
    tl.store(stats.masses + at, masses, mask=mask)
    _decide(cuts, scratch, i, cut, last_id, tl.where(row.by_mass | (row.top_p >= 1.0), 0, 2))


@jit
def _equal_id(source, i, tile, cut, rank, edited: tl.constexpr):
    """The id of a tile's `rank`-th token equal to the cut."""
    token_ids = tl.arange(0, TILE) + tile * TILE
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        values = processed(values, token_ids, source, i, tile, tile + 1)
    equal = order(values) == cut
    found = equal & (tl.cumsum(equal.to(tl.int32), 0) == rank.to(tl.int32))
    return tl.min(tl.where(found, token_ids, LAST_ID), 0)


@jit
def _decide(cuts, scratch, i, cut, last_id, undecided):
    tl.store(cuts.thresholds + i, value_of(cut))
    tl.store(cuts.last_ids + i, last_id)
    tl.store(scratch.undecided + i, undecided)


def cut_within(
    source: Source,
    stats: TileStats,
    cuts: Cuts,
    scratch: Scratch,
    brackets: Brackets,
    *,
    edited: bool,
    second: bool,
) -> None:
    """Find the cuts of bracketed rows in place and leave the masses of what they keep.

    Args:
        source, stats, cuts, scratch: as `head` took and gave them.
        brackets: as `bracket` gave them.
        edited, second: as for `bracket`.
    """
    num_rows, num_tiles = stats.maxima.shape
    found = scan(source, stats, scratch, brackets, edited=edited, second=second)
    padded_tiles, room = max(2, triton.next_power_of_2(num_tiles)), found.noted.shape[2]
    _finish_kernel[(num_rows,)](
        source,
        stats,
        cuts,
        scratch,
        brackets,
        found,
        num_tiles,
        padded_tiles=padded_tiles,
        room=room,
        edited=edited,
        second=second,
        num_warps=16,
        maxnreg=64 if padded_tiles * room <= NOTED else 128,  # two programs a multiprocessor
        enable_fp_fusion=False,
    )
