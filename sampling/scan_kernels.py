# mypy: allow-untyped-defs, allow-incomplete-defs
"""Min-p, top-k and top-p in Triton without sorting the vocabulary: the cut within a bracket.

A pass over the logits measures what lies above the bracket, inside it and below it, tile by
tile, and notes the few values inside; the cut is found among those. The measures prove the
bracket right: where it was wrong, or a tile holds too many values of it, the row stays
undecided for `search_kernels`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling import noise
from sampling.bracket_kernels import Brackets
from sampling.filter_kernels import (
    LAST_ID,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Scratch,
    order,
    value_of,
)
from sampling.logit_kernels import NUM_FLOATS, NUM_INTS, TILE, Source, load_raw, processed
from sampling.race_kernels import Cuts, TileStats, scale_of
from sampling.triton_support import constexpr, jit, tl, triton

NOTED = 8192  # room for values inside a row's bracket, in equal shares a tile
LEAST_NOTED = 64
SCANNED_TILES = 8  # a program's share of the pass

_SCANNED_TILES = constexpr(SCANNED_TILES)


class Scan(NamedTuple):
    """What the pass finds in each tile; masses are relative to the tile's maximum."""

    mass_above: Tensor  # float32 [n, tiles]
    num_above: Tensor  # int32 [n, tiles]
    mass_inside: Tensor  # float32 [n, tiles]
    num_inside: Tensor  # int32 [n, tiles]
    mass_below: Tensor  # float32 [n, tiles], down to the limit
    noted: Tensor  # int32 [n, tiles, share of NOTED], `order`s inside the bracket


@jit
def _scan_kernel(
    source,
    stats,
    scratch,
    brackets,
    scan,
    num_tiles,
    room: tl.constexpr,
    edited: tl.constexpr,
    second: tl.constexpr,
):
    i = tl.program_id(1).to(tl.int64)
    if tl.load(scratch.undecided + i) != second + 1:
        return
    row = tl.load(source.rows + i).to(tl.int64)
    scale = scale_of(tl.load(source.floats + row * NUM_FLOATS + TEMPERATURE))
    low, high = tl.load(brackets.low + i), tl.load(brackets.high + i)
    limit, limit_id = tl.load(brackets.limit + i), tl.load(brackets.limit_id + i)
    first = tl.program_id(0) * _SCANNED_TILES
    for tile in range(first, tl.minimum(first + _SCANNED_TILES, num_tiles)):
        token_ids = tl.arange(0, TILE) + tile * TILE
        values = load_raw(source, i, token_ids, token_ids >= 0)
        if edited:
            values = processed(values, token_ids, source, i, tile, tile + 1)
        orders = order(values)
        allowed = (orders > limit) | ((orders == limit) & (token_ids <= limit_id))
        above = allowed & (orders > high)
        inside = allowed & (orders >= low) & (orders <= high)
        at = i * num_tiles + tile
        top = tl.load(stats.maxima + at)
        weights = tl.exp2((values - tl.where(top == float("-inf"), 0.0, top)) * scale)
        tl.store(scan.mass_above + at, tl.sum(tl.where(above, weights, 0.0), 0))
        tl.store(scan.mass_inside + at, tl.sum(tl.where(inside, weights, 0.0), 0))
        below = allowed & (orders < low)
        tl.store(scan.mass_below + at, tl.sum(tl.where(below, weights, 0.0), 0))
        tl.store(scan.num_above + at, tl.sum(above.to(tl.int32), 0))
        num_inside = tl.sum(inside.to(tl.int32), 0)
        tl.store(scan.num_inside + at, num_inside)
        if (num_inside > 0) & (low < high):
            slot = tl.cumsum(inside.to(tl.int32), 0) - 1
            tl.store(scan.noted + at * room + slot, orders, mask=inside & (slot < room))


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
    row = tl.load(source.rows + i).to(tl.int64)
    floats = source.floats + row * NUM_FLOATS
    temperature, top_p = tl.load(floats + TEMPERATURE), tl.load(floats + TOP_P)
    top_k = tl.load(source.ints + row * NUM_INTS + TOP_K)
    by_mass = (top_k == 0) | second
    low, high = tl.load(brackets.low + i), tl.load(brackets.high + i)
    limit, limit_id = tl.load(brackets.limit + i), tl.load(brackets.limit_id + i)
    tiles = tl.arange(0, padded_tiles)
    mask = tiles < num_tiles
    at = i * num_tiles + tiles
    maxima = tl.load(stats.maxima + at, mask=mask, other=float("-inf"))
    top = tl.max(maxima, 0)
    factors = tl.exp((maxima - top).to(tl.float64) / temperature)
    masses = tl.load(scan.mass_above + at, mask=mask, other=0.0)
    num_inside = tl.load(scan.num_inside + at, mask=mask, other=0)
    mass_inside = tl.load(scan.mass_inside + at, mask=mask, other=0.0)
    mass_below = tl.load(scan.mass_below + at, mask=mask, other=0.0)
    if low > high:  # min-p alone: all is above
        tl.store(stats.masses + at, masses, mask=mask)
        _decide(cuts, scratch, i, limit, limit_id, 0)
        return
    if by_mass:
        above, inside = tl.sum(masses * factors, 0), tl.sum(mass_inside * factors, 0)
        target = top_p * (above + inside + tl.sum(mass_below * factors, 0))
    else:
        num_above = tl.load(scan.num_above + at, mask=mask, other=0)
        above = tl.sum(num_above, 0).to(tl.float64)
        inside = tl.sum(num_inside, 0).to(tl.float64)
        target = top_k.to(tl.float64)
    if low <= limit:  # nothing lower may be kept
        target = tl.minimum(target, above + inside)
    crowded = (tl.max(num_inside, 0) > room) & (low < high)
    if (target <= above) | (target > above + inside) | crowded:
        tl.store(scratch.undecided + i, 1)
        return

    # The cut's value, and how many of the tokens equal to it are kept.
    slots = tl.arange(0, room)[None, :]
    noted = slots < tl.where(low < high, num_inside, 0)[:, None]
    orders = tl.load(scan.noted + at[:, None] * room + slots, mask=noted, other=-2147483647)
    scale = scale_of(temperature)
    peak = value_of(high)
    weights = tl.where(by_mass, tl.exp2((value_of(orders) - peak) * scale), 1.0)
    weights = tl.where(noted, weights, 0.0)
    unit = tl.where(by_mass, tl.exp((peak - top).to(tl.float64) / temperature), 1.0)
    missing = (target - above) / unit
    cut_low, cut_high = low.to(tl.int64), high.to(tl.int64)
    while cut_low < cut_high:
        middle = cut_low + (cut_high - cut_low + 1) // 2
        reached = tl.sum(tl.sum(tl.where(orders >= middle, weights, 0.0), 1), 0) >= missing
        cut_low = tl.where(reached, middle, cut_low)
        cut_high = tl.where(reached, cut_high, middle - 1)
    cut = cut_low.to(tl.int32)
    missing -= tl.sum(tl.sum(tl.where(orders > cut, weights, 0.0), 1), 0)
    equal_weight = tl.where(by_mass, tl.exp2((value_of(cut) - peak) * scale), 1.0)
    needed = tl.ceil(missing / equal_weight)
    num_equal = tl.sum((orders == cut).to(tl.int32), 1)
    num_equal = tl.where(low < high, num_equal, num_inside)

    # Equal tokens are kept in id order: all of some tiles, the first of one.
    ends = tl.cumsum(num_equal, 0)
    kept_equal = tl.minimum(tl.maximum(needed - (ends - num_equal), 0.0), num_equal)
    last_id = tl.where(cut == limit, limit_id, LAST_ID)
    if needed < tl.max(ends, 0):
        tile = tl.min(tl.where(ends >= needed, tiles, padded_tiles - 1), 0)
        rank = tl.sum(tl.where(tiles == tile, kept_equal, 0.0), 0)
        last_id = _equal_id(source, i, tile, cut, rank, edited)
    gaps = tl.where(noted & (orders > cut), value_of(orders) - maxima[:, None], float("-inf"))
    masses += tl.sum(tl.exp2(gaps * scale), 1)
    gap = tl.where(kept_equal > 0, value_of(cut) - maxima, float("-inf"))
    masses += kept_equal.to(tl.float32) * tl.exp2(gap * scale)
    tl.store(stats.masses + at, masses, mask=mask)
    _decide(cuts, scratch, i, cut, last_id, tl.where(by_mass | (top_p >= 1.0), 0, 2))


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

    def buffer(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(num_rows, num_tiles, *shape, dtype=dtype, device=stats.maxima.device)

    def masses() -> Tensor:
        return buffer(dtype=torch.float32)

    padded_tiles = max(2, triton.next_power_of_2(num_tiles))
    room = min(noise.TILE, max(LEAST_NOTED, NOTED // padded_tiles))
    scan = Scan(masses(), buffer(), masses(), buffer(), masses(), buffer(room))
    common = {"room": room, "edited": edited, "second": second, "enable_fp_fusion": False}
    _scan_kernel[(triton.cdiv(num_tiles, SCANNED_TILES), num_rows)](
        source, stats, scratch, brackets, scan, num_tiles, num_warps=1, **common
    )
    _finish_kernel[(num_rows,)](
        source,
        stats,
        cuts,
        scratch,
        brackets,
        scan,
        num_tiles,
        padded_tiles=padded_tiles,
        num_warps=16,
        **common,
    )
