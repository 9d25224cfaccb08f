# mypy: allow-untyped-defs, allow-incomplete-defs
"""The cut, last step of a turn: it is found among the values that the scan noted in the bracket.

The scan's measures prove whether the bracket holds the cut. Where it does not, or held more values
than there is room for, the row stays undecided, and the next turn starts from what is known now.

Tiles note their values in no certain order, so sums over a row's notes are of integers: results do
not depend on which tile came first.
"""

from __future__ import annotations

from sampling.device.triton_support import constexpr, jit, padded_lanes, tl
from sampling.filters.cut_state import (
    AGAIN,
    DECIDED,
    SECOND,
    Brackets,
    first_inside,
    has_missed,
    higher,
    last_inside,
    load_row,
    lower,
    under_min_p,
)
from sampling.filters.masses import kept_masses, load_scanned_tiles, store_cut
from sampling.filters.scan import Scan
from sampling.filters.shortlist import Scratch
from sampling.kernels.logits import Source
from sampling.kernels.order import order, value_of
from sampling.kernels.tile_pass import TileStats, scale_of
from sampling.race import Cut

TURNS = 2
"""Turns of bracket, scan and cut: one decides almost every row, the next what its sample misjudged.
"""

_HALVINGS = constexpr(12)  # after so many, few of 8,192 spread values are left
_NOTHING = constexpr(-2147483647)  # the order of a NaN, below all others


@jit
def _measured(scan, stats, row, i, tiles, top, num_tiles, padded_tiles: tl.constexpr):
    """The measure of the tokens above the bracket, and the target to reach, float64."""
    tile = tl.arange(0, padded_tiles)
    mask = tile < num_tiles
    at = i * num_tiles + tile
    if row.by_mass:
        factors = tl.exp((tiles.maxima - top).to(tl.float64) / row.temperature)
        above = tl.sum(tiles.mass_above * factors, 0)
        masses = tl.load(stats.masses + at, mask=mask, other=0.0)
        if under_min_p(row):
            masses = tl.load(scan.mass_allowed + at, mask=mask, other=0.0)
        target = row.top_p * tl.sum(masses * factors, 0)
    else:
        num_above = tl.load(scan.num_above + at, mask=mask, other=0)
        above = tl.sum(num_above, 0).to(tl.float64)
        target = row.top_k.to(tl.float64)
    return above, target


@jit
def _relative(row, orders, peak, scale):
    """The measure of each token in units of a token at `peak`; 1 where tokens are counted."""
    return tl.where(row.by_mass, tl.exp2((value_of(orders) - peak) * scale), 1.0)


@jit
def _among_noted(scan, row, i, num_noted, wanted, peak, scale, room, size: tl.constexpr):
    """Find where the noted values, added up from the highest, reach the measure wanted.

    Returns the measure of all noted values, the order of the one that reaches it, and how many of
    the values equal to that are needed. Measures are integers here, scaled so that all sum to 2^30
    at most; each is off by less than one, which for all is 2^-17 of their sum.
    """
    slot = tl.arange(0, size)
    mask = slot < num_noted
    orders = order(tl.load(scan.noted + i * room + slot, mask=mask, other=0.0))
    orders = tl.where(mask, orders, _NOTHING)
    weights = tl.where(mask, _relative(row, orders, peak, scale), 0.0)
    coarse = tl.sum((weights * 131072.0).to(tl.int32) + 1, 0).to(tl.float32) / 131072.0
    unit = tl.where(row.by_mass, 1073741824.0 / coarse, 1.0)
    shares = (weights * unit).to(tl.int32)
    total = tl.sum(shares, 0)
    goal = tl.ceil(tl.minimum(tl.maximum(wanted * unit, 0.0), total)).to(tl.int32)
    low, high = first_inside(row), last_inside(row)
    halvings = 0
    while (low < high) & (total > 0):
        middle = (low.to(tl.int64) + (high.to(tl.int64) - low + 1) // 2).to(tl.int32)
        reached = tl.sum(tl.where(orders >= middle, shares, 0), 0) >= goal
        low, high = tl.where(reached, middle, low), tl.where(reached, high, middle - 1)
        halvings += 1
        if halvings >= _HALVINGS:  # the highest value left may well be the cut, and the only one
            highest = tl.maximum(tl.max(tl.where(orders <= high, orders, low), 0), low)
            reached = tl.sum(tl.where(orders >= highest, shares, 0), 0) >= goal
            low = tl.where(reached, highest, low)
            high = tl.where(reached, highest, highest - 1)
    goal -= tl.sum(tl.where(orders > low, shares, 0), 0)
    share = tl.maximum(tl.max(tl.where(orders == low, shares, 0), 0), 1)
    return total.to(tl.float64) / unit, low, (goal + share - 1) // share


@jit
def _among(scan, row, i, num_noted, wanted, peak, scale, room: tl.constexpr):
    """Call `_among_noted` with half as many lanes where they suffice."""
    if num_noted <= room // 2:
        inside, cut, needed = _among_noted(
            scan, row, i, num_noted, wanted, peak, scale, room, room // 2
        )
    else:
        num_noted = tl.minimum(num_noted, room)
        inside, cut, needed = _among_noted(scan, row, i, num_noted, wanted, peak, scale, room, room)
    return inside, cut, needed


@jit
def _decide(row, num_high, num_low, inside, noted_cut, noted_needed, wanted, low_weight):
    """The cut that the bracket holds, and how many tokens equal to it are needed."""
    at_high = wanted <= num_high
    among = wanted <= num_high + inside
    cut = tl.where(at_high, row.high, tl.where(among, noted_cut, row.low))
    at_low = tl.ceil((wanted - num_high - inside) / low_weight)
    needed = tl.where(at_high, tl.ceil(wanted), tl.where(among, noted_needed, at_low))
    return cut, needed


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
):
    i = tl.program_id(0).to(tl.int64)
    state = tl.load(scratch.states + i)
    if state == DECIDED:
        return
    row = load_row(source, brackets, i, state)
    tiles = load_scanned_tiles(scan, stats, row, i, num_tiles, padded_tiles)
    if row.low > row.high:  # min-p alone: all is above
        masses = tiles.mass_above
        store_cut(stats, cuts, i, row.limit, row.limit_id, masses, num_tiles, padded_tiles)
        tl.store(scratch.states + i, DECIDED)
        return
    top, peak, scale = tl.max(tiles.maxima, 0), value_of(row.high), scale_of(row.temperature)
    above, target = _measured(scan, stats, row, i, tiles, top, num_tiles, padded_tiles)
    unit = tl.exp((peak - top).to(tl.float64) / row.temperature)
    unit = tl.where(row.by_mass, unit, 1.0)
    wanted = (target - above) / unit  # of the bracket, in tokens at its high end
    num_noted = tl.sum(tiles.num_inside, 0)
    num_high = tl.sum(tiles.num_high, 0).to(tl.float64)
    inside, noted_cut, noted_needed = _among(
        scan, row, i, num_noted, wanted - num_high, peak, scale, room
    )
    low_weight = _relative(row, row.low, peak, scale)
    num_low = tl.sum(tiles.num_low, 0).to(tl.float64)
    most = num_high + inside + num_low * low_weight
    crowded = (num_noted > room) & (wanted > num_high)
    short = wanted > 0.0
    if (row.low <= row.limit) & (crowded == 0):  # nothing lower may be kept
        wanted = tl.minimum(wanted, most)
    if (short == 0) | ((wanted > most) | crowded):
        known = tl.where(crowded, num_high, tl.where(short, most, 0.0)) * unit
        left = tl.abs(target - above - known)
        _reopen(scratch, brackets, row, i, state, left, short, crowded)
        return
    cut, needed = _decide(
        row, num_high, num_low, inside, noted_cut, noted_needed, wanted, low_weight
    )
    masses, last_id = kept_masses(
        source, scan, row, i, tiles, cut, needed, scale, room, padded_tiles, edited
    )
    store_cut(stats, cuts, i, cut, last_id, masses, num_tiles, padded_tiles)
    again = (row.by_mass == 0) & (row.top_p < 1.0)
    tl.store(scratch.states + i, tl.where(again, SECOND, DECIDED))


@jit
def _reopen(scratch, brackets, row, i, state, left, from_above, crowded):
    """Narrow where the cut can lie for the next turn: a floor or ceiling, and the measure left."""
    if from_above:
        tl.store(brackets.ceiling + i, tl.where(crowded, last_inside(row), lower(row.low)))
    else:
        tl.store(brackets.floor + i, higher(row.high))
    tl.store(brackets.left + i, left)
    tl.store(brackets.from_above + i, from_above.to(tl.int32))
    tl.store(scratch.states + i, tl.where(has_missed(state), state, state + AGAIN))


def cut_within(
    source: Source,
    stats: TileStats,
    cuts: Cut,
    scratch: Scratch,
    brackets: Brackets,
    found: Scan,
    *,
    edited: bool,
) -> None:
    """Find the cuts of the bracketed rows, in place, with the masses of what they keep.

    Args:
        source, stats, cuts, scratch: as `shortlist` took and gave them.
        brackets: as `bracket` gave them; narrowed in place for rows that stay undecided.
        found: as `scan` gave it, of all tiles.
        edited: as for `bracket`.
    """
    num_rows, num_tiles = stats.maxima.shape
    _finish_kernel[(num_rows,)](
        source,
        stats,
        cuts,
        scratch,
        brackets,
        found,
        num_tiles,
        padded_tiles=padded_lanes(num_tiles),
        room=found.noted.shape[1],
        edited=edited,
        num_warps=8,
        maxnreg=128,  # two programs a multiprocessor
        enable_fp_fusion=False,
    )
