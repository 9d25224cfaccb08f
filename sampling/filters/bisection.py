# mypy: allow-untyped-defs, allow-incomplete-defs
"""The bisection, the last resort of the filters: it halves a row's values, slow and always right.

It decides the rows that neither the shortlist nor any turn over a bracket could, which takes
samples that mislead time and again. One program bisects one row, by a pass over the row a step.
"""

from __future__ import annotations

from sampling.device.triton_support import constexpr, jit, padded_lanes, tl
from sampling.filters.cut_state import DECIDED, LAST_ID, floor_order, row_top
from sampling.filters.shortlist import Scratch
from sampling.kernels.logits import TILE, Source, load_raw, processed
from sampling.kernels.order import is_kept, order, value_of
from sampling.kernels.row_params import load_filters, load_log_min_p, sampling_row
from sampling.kernels.tile_pass import TileStats, scale_of
from sampling.race import Cut

_GROUP = constexpr(8)  # tiles scanned at once
_ALL = constexpr(2**62)


@jit
def _group(source, i, tile, num_tiles, edited: tl.constexpr):
    """Load ids and processed logits of the tiles tile .. tile + _GROUP - 1."""
    tiles = tl.arange(0, _GROUP) + tile
    token_ids = tiles[:, None] * TILE + tl.arange(0, TILE)[None, :]
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        last = tl.minimum(tile + _GROUP, num_tiles)
        values = processed(values, token_ids, source, i, tile, last)
    return tiles, token_ids, values


@jit
def _relative(values, maxima, scale):
    """The mass of each value relative to its tile's maximum: exp((value - maximum) / T)."""
    return tl.exp2((values - tl.where(maxima == float("-inf"), 0.0, maxima)[:, None]) * scale)


@jit
def _measure(
    source,
    stats,
    i,
    low,
    limit,
    limit_id,
    by_mass,
    top,
    temperature,
    num_tiles,
    edited: tl.constexpr,
):
    """Measure the tokens of order `low` and higher that the limit allows: their mass or number."""
    measure = tl.full((), 0.0, tl.float64)
    scale = scale_of(temperature)
    for tile in range(0, num_tiles, _GROUP):
        tiles, token_ids, values = _group(source, i, tile, num_tiles, edited)
        at = i * num_tiles + tiles
        maxima = tl.load(stats.maxima + at, mask=tiles < num_tiles, other=float("-inf"))
        orders = order(values)
        allowed = is_kept(orders, token_ids, limit, limit_id)
        kept = allowed & (orders >= low)
        if by_mass:
            masses = tl.sum(tl.where(kept, _relative(values, maxima, scale), 0.0), 1)
            measure += tl.sum(masses * tl.exp((maxima - top).to(tl.float64) / temperature), 0)
        else:
            measure += tl.sum(tl.sum(kept.to(tl.int32), 1), 0)
    return measure


@jit
def _count_off(
    source,
    stats,
    i,
    cut,
    needed,
    limit_id,
    temperature,
    num_tiles,
    edited: tl.constexpr,
):
    """Keep what lies above the order `cut` and the first `needed` equal to it, in id order.

    Writes the masses kept and returns the last equal id, at most `limit_id`.
    """
    last_id = limit_id
    counted = tl.full((), 0, tl.int64)
    scale = scale_of(temperature)
    for tile in range(0, num_tiles, _GROUP):
        tiles, token_ids, values = _group(source, i, tile, num_tiles, edited)
        orders = order(values)
        flat_ids = tl.reshape(token_ids, (_GROUP * TILE,))
        equal = tl.reshape(orders == cut, (_GROUP * TILE,)) & (flat_ids <= limit_id)
        rank = counted + tl.cumsum(equal.to(tl.int32), 0)
        found = tl.min(tl.where(equal & (rank == needed), flat_ids, LAST_ID), 0)
        last_id = tl.minimum(last_id, found)
        counted += tl.sum(equal.to(tl.int32), 0)
        at = i * num_tiles + tiles
        maxima = tl.load(stats.maxima + at, mask=tiles < num_tiles, other=float("-inf"))
        kept = is_kept(orders, token_ids, cut, last_id)
        masses = tl.sum(tl.where(kept, _relative(values, maxima, scale), 0.0), 1)
        tl.store(stats.masses + at, masses, mask=tiles < num_tiles)
    return last_id


@jit
def _bisect(
    source,
    stats,
    i,
    by_mass,
    target,
    limit,
    limit_id,
    top,
    temperature,
    num_tiles,
    edited: tl.constexpr,
):
    """Find the cut that reaches the target, at or above the limit; store the masses it keeps.

    Returns its order and the last id kept among the tokens equal to it.
    """
    low, high = limit.to(tl.int64), order(top).to(tl.int64)
    while low < high:  # the highest order that reaches the target
        middle = (low + (high - low + 1) // 2).to(tl.int32)
        measure = _measure(
            source, stats, i, middle, limit, limit_id, by_mass, top, temperature, num_tiles, edited
        )
        low = tl.where(measure >= target, middle, low)
        high = tl.where(measure >= target, high, middle - 1)
    cut = low.to(tl.int32)
    above = _measure(
        source, stats, i, cut + 1, limit, limit_id, by_mass, top, temperature, num_tiles, edited
    )
    weight = tl.exp((value_of(cut) - top).to(tl.float64) / temperature)
    missing = (target - above) / tl.where(by_mass, weight, 1.0)
    needed = tl.ceil(tl.minimum(missing, 2.0**31)).to(tl.int64)
    last_id = tl.where(cut == limit, limit_id, LAST_ID)
    return cut, _count_off(source, stats, i, cut, needed, last_id, temperature, num_tiles, edited)


@jit
def _bisect_kernel(
    source,
    stats,
    cuts,
    scratch,
    num_tiles,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    if tl.load(scratch.states + i) == DECIDED:
        return
    row = sampling_row(source, i)
    temperature, top_k, top_p = load_filters(source, row)
    top = row_top(stats, i, num_tiles, padded_tiles)
    limit = floor_order(top, temperature, load_log_min_p(source, row))
    limit_id = tl.full((), 0, tl.int32) + LAST_ID
    needed = tl.full((), 0, tl.int64) + _ALL
    _count_off(source, stats, i, limit, needed, limit_id, temperature, num_tiles, edited)
    for phase in range(2):
        by_mass = phase == 1
        if tl.where(by_mass, top_p < 1.0, top_k > 0):
            target = top_k.to(tl.float64)
            if by_mass:
                target = top_p * _measure(
                    source, stats, i, limit, limit, limit_id, by_mass, top, temperature,
                    num_tiles, edited,
                )  # fmt: skip
            limit, limit_id = _bisect(
                source, stats, i, by_mass, target, limit, limit_id, top, temperature, num_tiles,
                edited,
            )  # fmt: skip
    tl.store(cuts.thresholds + i, value_of(limit))
    tl.store(cuts.last_ids + i, limit_id)


def bisect(
    source: Source,
    stats: TileStats,
    cuts: Cut,
    scratch: Scratch,
    *,
    edited: bool,
) -> None:
    """Cut the rows that are still undecided, in place; the others cost nothing.

    Args:
        source, stats, cuts, scratch: as `shortlist` took and gave them.
        edited: as for `tile_pass`.
    """
    num_rows, num_tiles = stats.maxima.shape
    _bisect_kernel[(num_rows,)](
        source,
        stats,
        cuts,
        scratch,
        num_tiles,
        padded_tiles=padded_lanes(num_tiles),
        edited=edited,
        num_warps=16,
        enable_fp_fusion=False,
    )
