# mypy: allow-untyped-defs, allow-incomplete-defs
"""Min-p, top-k and top-p in Triton without sorting the vocabulary: the last resort.

Rows that neither the head nor any turn over a bracket could decide, which takes samples that
mislead time and again. One program bisects one row's values, a scan of the row a step: slow, and
always right.
"""

from __future__ import annotations

from sampling.filters.shortlist import LAST_ID, LOG_MIN_P, TEMPERATURE, TOP_K, TOP_P, Scratch
from sampling.filters.turns import floor_order, row_top
from sampling.kernels.logits import NUM_FLOATS, NUM_INTS, TILE, Source, load_raw, processed
from sampling.kernels.order import order, value_of
from sampling.kernels.race import Cuts
from sampling.kernels.tile_pass import TileStats, scale_of
from sampling.triton_support import constexpr, jit, tl, triton

_GROUP = constexpr(8)  # tiles scanned at once
_ALL = constexpr(2**62)


@jit
def _group(source, i, tile, num_tiles, edited: tl.constexpr):
    """Ids and processed logits of the tiles tile .. tile + _GROUP - 1."""
    tiles = tl.arange(0, _GROUP) + tile
    token_ids = tiles[:, None] * TILE + tl.arange(0, TILE)[None, :]
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        last = tl.minimum(tile + _GROUP, num_tiles)
        values = processed(values, token_ids, source, i, tile, last)
    return tiles, token_ids, values


@jit
def _relative(values, maxima, scale):
    """exp((value - maximum of its tile) / T)."""
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
    """The measure of the tokens of order `low` and higher that the limit allows."""
    measure = tl.full((), 0.0, tl.float64)
    scale = scale_of(temperature)
    for tile in range(0, num_tiles, _GROUP):
        tiles, token_ids, values = _group(source, i, tile, num_tiles, edited)
        at = i * num_tiles + tiles
        maxima = tl.load(stats.maxima + at, mask=tiles < num_tiles, other=float("-inf"))
        orders = order(values)
        allowed = (orders > limit) | ((orders == limit) & (token_ids <= limit_id))
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
        kept = (orders > cut) | ((orders == cut) & (token_ids <= last_id))
        masses = tl.sum(tl.where(kept, _relative(values, maxima, scale), 0.0), 1)
        tl.store(stats.masses + at, masses, mask=tiles < num_tiles)
    return last_id


@jit
def _search(
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
    """The cut that reaches the target, at or above the limit; leaves the masses it keeps."""
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
def _search_kernel(
    source,
    stats,
    cuts,
    scratch,
    num_tiles,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    if tl.load(scratch.undecided + i) == 0:
        return
    row = tl.load(source.rows + i).to(tl.int64)
    floats = source.floats + row * NUM_FLOATS
    temperature, top_p = tl.load(floats + TEMPERATURE), tl.load(floats + TOP_P)
    top_k = tl.load(source.ints + row * NUM_INTS + TOP_K)
    top = row_top(stats, i, num_tiles, padded_tiles)
    limit = floor_order(top, temperature, tl.load(floats + LOG_MIN_P))
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
            limit, limit_id = _search(
                source, stats, i, by_mass, target, limit, limit_id, top, temperature, num_tiles,
                edited,
            )  # fmt: skip
    tl.store(cuts.thresholds + i, value_of(limit))
    tl.store(cuts.last_ids + i, limit_id)


def search(
    source: Source,
    stats: TileStats,
    cuts: Cuts,
    scratch: Scratch,
    *,
    edited: bool,
) -> None:
    """Cut the rows that are still undecided, in place; the others cost nothing.

    Args:
        source, stats, cuts, scratch: as `head` took and gave them.
        edited: as for `tile_pass`.
    """
    num_rows, num_tiles = stats.maxima.shape
    _search_kernel[(num_rows,)](
        source,
        stats,
        cuts,
        scratch,
        num_tiles,
        padded_tiles=max(2, triton.next_power_of_2(num_tiles)),
        edited=edited,
        num_warps=16,
        enable_fp_fusion=False,
    )
