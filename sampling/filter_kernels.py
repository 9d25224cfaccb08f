# mypy: allow-untyped-defs, allow-incomplete-defs
"""Min-p, top-k and top-p in Triton without sorting the vocabulary: the head.

The tile pass leaves the maximum of every `PEAK` ids. The k highest tokens all lie at or above
the k-th highest peak, so only blocks whose peak reaches it can hold one: a top-k of 50 reads
about 50 blocks again, and only the few candidates found there are sorted. A top-p needs nothing
more where the `HEAD` highest peaks hold its mass. Rows that cannot be decided like this (flat
distributions, large k, crowds of ties) are marked for `bracket_kernels`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling import noise, rows
from sampling.logit_kernels import (
    FLAGS,
    NUM_FLOATS,
    NUM_INTS,
    TILE,
    Source,
    load_raw,
    processed,
)
from sampling.race import NO_LAST
from sampling.race_kernels import Cuts
from sampling.tile_kernels import PEAK, TileStats, scale_of
from sampling.triton_support import constexpr, jit, tl, triton

HEAD = rows.LARGE_TOP_K  # peaks looked at where top-k does not ask for fewer
MAX_BLOCKS = 256  # blocks that may reach the threshold, more by ties only
MAX_CANDIDATES = 256

FILTERED = constexpr(rows.FILTERED)
TOP_K, TOP_P = constexpr(rows.TOP_K), constexpr(rows.TOP_P)
LOG_MIN_P, TEMPERATURE = constexpr(rows.LOG_MIN_P), constexpr(rows.TEMPERATURE)
LAST_ID = constexpr(NO_LAST)  # the largest int32 and what cuts use for "all equals"
BLOCK, BLOCKS_PER_TILE = constexpr(PEAK), constexpr(noise.TILE // PEAK)
_HEAD, _BLOCKS, _CANDIDATES = (
    constexpr(HEAD),
    constexpr(MAX_BLOCKS),
    constexpr(MAX_CANDIDATES),
)
_GROUP = constexpr(8)  # blocks read at once
_HIDDEN = constexpr(1.25)  # mass of candidates over that of the peaks among them, at most likely
_LOWEST_KEY, _HIGHEST_KEY = constexpr(-(2**63)), constexpr(2**63 - 1)


class Scratch(NamedTuple):
    """Per-row working memory of the filters."""

    undecided: Tensor  # int32 [n], 1 where the head could not decide
    blocks: Tensor  # int32 [n, MAX_BLOCKS]
    orders: Tensor  # int32 [n, MAX_CANDIDATES], `order` of the candidates' logits
    token_ids: Tensor  # int32 [n, MAX_CANDIDATES]


@jit
def order(values):
    """int32 in the order of float32 values; both zeros alike."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def value_of(orders):
    """The float32 value of an `order`."""
    return (orders ^ ((orders >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@jit
def rank_key(orders, token_ids):
    """int64, larger for the token that comes first: higher logit, then lower id."""
    return (orders.to(tl.int64) << 32) | (0x7FFFFFFF - token_ids).to(tl.int64)


@jit
def _threshold(peaks, top, wanted):
    """A value that at least `wanted` of the peaks reach and few more; -inf if there are fewer."""
    orders = order(peaks)
    low = order(tl.min(tl.where(peaks > float("-inf"), peaks, top), 0)).to(tl.int64)
    high = order(top).to(tl.int64)
    reached = tl.sum((peaks > float("-inf")).to(tl.int32), 0)
    lowest = tl.where(reached < wanted, float("-inf"), value_of(low.to(tl.int32)))
    while (low < high) & (reached > wanted + wanted // 4):
        middle = low + (high - low + 1) // 2
        count = tl.sum((orders >= middle).to(tl.int32), 0)
        enough = count >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
        reached = tl.where(enough, count, reached)
    return tl.where(lowest == float("-inf"), lowest, value_of(low.to(tl.int32)))


@jit
def _select(
    stats, scratch, i, top, floor, temperature, wanted, num_tiles, padded_tiles: tl.constexpr
):
    """Write the blocks that can hold the `wanted` highest; return their threshold, their number
    and the mass of their peaks."""
    ids = tl.arange(0, padded_tiles * BLOCKS_PER_TILE)
    num_peaks = num_tiles * BLOCKS_PER_TILE
    peaks = tl.load(stats.peaks + i * num_peaks + ids, mask=ids < num_peaks, other=float("-inf"))
    threshold = _threshold(peaks, top, wanted)
    selected = (peaks >= threshold) & (peaks > float("-inf")) & (peaks.to(tl.float64) >= floor)
    slot = tl.cumsum(selected.to(tl.int32), 0) - 1
    tl.store(scratch.blocks + i * _BLOCKS + slot, ids, mask=selected & (slot < _BLOCKS))
    weights = tl.where(selected, tl.exp2((peaks - top) * scale_of(temperature)), 0.0)
    return threshold, tl.sum(selected.to(tl.int32), 0), tl.sum(weights, 0)


@jit
def _block_ids(source, scratch, i, start, num_blocks):
    """Token ids [_GROUP, BLOCK] of some selected blocks; the vocabulary's size beyond them."""
    slot = tl.arange(0, _GROUP) + start
    mask = slot < num_blocks
    block = tl.load(scratch.blocks + i * _BLOCKS + slot, mask=mask, other=0)
    token_ids = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    return tl.where(mask[:, None], token_ids, source.vocab_size)


@jit
def _collect(source, scratch, i, threshold, floor, num_blocks, num_tiles, edited: tl.constexpr):
    """Write the candidates of the selected blocks in id order and return their number."""
    count = 0
    next_ids = _block_ids(source, scratch, i, 0, num_blocks)
    next_values = load_raw(source, i, next_ids, next_ids >= 0)
    for start in range(0, num_blocks, _GROUP):
        token_ids, values = next_ids, next_values
        next_ids = _block_ids(source, scratch, i, start + _GROUP, num_blocks)
        next_values = load_raw(source, i, next_ids, next_ids >= 0)  # flies meanwhile
        if edited:
            values = processed(values, token_ids, source, i, 0, num_tiles)
        kept = (values >= threshold) & (values > float("-inf"))
        kept = (kept & (values.to(tl.float64) >= floor)).to(tl.int32)
        in_block = tl.sum(kept, 1)
        begins = tl.cumsum(in_block, 0) - in_block + count
        slot = begins[:, None] + tl.cumsum(kept, 1) - 1
        inside = (kept != 0) & (slot < _CANDIDATES)
        tl.store(scratch.orders + i * _CANDIDATES + slot, order(values), mask=inside)
        tl.store(scratch.token_ids + i * _CANDIDATES + slot, token_ids, mask=inside)
        count += tl.sum(in_block, 0)
    return count


@jit
def _last_kept(keys, count, top, temperature, top_k, top_p, all_mass):
    """The lowest of the candidates' keys that the filters keep; the highest int64 if they do
    not suffice to reach the top-p of `all_mass` (negative: they are all there is)."""
    slot = tl.arange(0, _CANDIDATES)
    ordered = tl.sort(keys, descending=True)
    kept = slot < tl.minimum(count, top_k)
    gaps = (value_of((ordered >> 32).to(tl.int32)) - top).to(tl.float64)
    weights = tl.where(kept, tl.exp(gaps / temperature), 0.0)
    mass = tl.cumsum(weights, 0)
    found = tl.max(mass, 0)
    target = top_p * tl.where(all_mass < 0.0, found, all_mass)
    kept = kept & (mass - weights < tl.where(top_p >= 1.0, float("inf"), target))
    cut = tl.min(tl.where(kept, ordered, _HIGHEST_KEY), 0)
    return tl.where((all_mass >= 0.0) & (found < target), _HIGHEST_KEY, cut)


@jit
def _same_tile_sum(first_sum, first_tile, second_sum, second_tile):
    """Combines running sums that start anew at every tile."""
    return tl.where(first_tile == second_tile, first_sum + second_sum, second_sum), second_tile


@jit
def _store_masses(stats, i, kept, values, tile, next_tile, temperature, num_tiles):
    """The mass of kept candidates, in id order, for each tile; the tiles must hold zeros."""
    maxima = tl.load(stats.maxima + i * num_tiles + tile)
    weights = tl.exp((values - maxima).to(tl.float64) / temperature)
    weights = tl.where(kept, weights, 0.0)
    sums, _tiles = tl.associative_scan((weights, tile), 0, _same_tile_sum)
    at = stats.masses + i * num_tiles + tile
    tl.store(at, sums.to(tl.float32), mask=tile != next_tile)


@jit(do_not_specialize=["elsewhere"])
def _head_kernel(
    source,
    stats,
    cuts,
    scratch,
    num_tiles,
    elsewhere,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    tile_ids = tl.arange(0, padded_tiles)
    at = i * num_tiles + tile_ids
    maxima = tl.load(stats.maxima + at, mask=tile_ids < num_tiles, other=float("-inf"))
    masses = tl.load(stats.masses + at, mask=tile_ids < num_tiles, other=0.0)
    tl.store(cuts.thresholds + i, float("-inf"))
    tl.store(cuts.last_ids + i, LAST_ID)
    tl.store(scratch.undecided + i, 0)
    row = tl.load(source.rows + i).to(tl.int64)
    floats = source.floats + row * NUM_FLOATS
    top = tl.max(maxima, 0)
    broken = tl.max((masses != masses).to(tl.int32), 0) != 0
    broken = broken | (top == float("-inf")) | (top == float("inf"))
    flags = tl.load(source.ints + row * NUM_INTS + FLAGS)
    if broken | ((flags & FILTERED) == 0) | ((flags & elsewhere) != 0):
        return  # a bad row keeps the masses that say so
    temperature, top_p = tl.load(floats + TEMPERATURE), tl.load(floats + TOP_P)
    top_k = tl.load(source.ints + row * NUM_INTS + TOP_K)
    top_k = tl.where(top_k == 0, source.vocab_size, top_k)
    floor = top + temperature * tl.load(floats + LOG_MIN_P)

    wanted = tl.minimum(top_k, _HEAD)
    threshold, num_blocks, peak_mass = _select(
        stats, scratch, i, top, floor, temperature, wanted, num_tiles, padded_tiles
    )
    # The candidates are all that top-k and min-p leave, or a lone top-p may end among them.
    closed = (top_k <= _HEAD) | (floor >= threshold.to(tl.float64))
    open_top_p = (top_k == source.vocab_size) & (floor == float("-inf")) & (top_p < 1.0)
    tl.store(scratch.undecided + i, 1)
    weights = masses * tl.exp((maxima - top).to(tl.float64) / temperature)
    all_mass = tl.sum(weights, 0)
    # Most candidates are peaks: a top-p that wants much more mass than theirs would look in vain.
    open_top_p = open_top_p & (_HIDDEN * peak_mass > top_p * all_mass)
    if ((closed | open_top_p) == 0) | (num_blocks > _BLOCKS):
        return
    tl.debug_barrier()  # blocks were written by other threads
    count = _collect(source, scratch, i, threshold, floor, num_blocks, num_tiles, edited)
    if count > _CANDIDATES:
        return
    tl.debug_barrier()
    slot = tl.arange(0, _CANDIDATES)
    candidate = i * _CANDIDATES + slot
    mask = slot < count
    orders = tl.load(scratch.orders + candidate, mask=mask, other=0)
    token_ids = tl.load(scratch.token_ids + candidate, mask=mask, other=0)
    next_ids = tl.load(scratch.token_ids + candidate + 1, mask=slot + 1 < count, other=-1)
    keys = tl.where(mask, rank_key(orders, token_ids), _LOWEST_KEY)
    all_mass = tl.where(closed, -1.0, all_mass)
    cut = _last_kept(keys, count, top, temperature, top_k, top_p, all_mass)
    if cut == _HIGHEST_KEY:
        return
    tl.store(scratch.undecided + i, 0)
    tl.store(cuts.thresholds + i, value_of((cut >> 32).to(tl.int32)))
    tl.store(cuts.last_ids + i, 0x7FFFFFFF - (cut & 0x7FFFFFFF).to(tl.int32))
    tl.store(stats.masses + at, tl.zeros_like(masses), mask=tile_ids < num_tiles)
    tl.debug_barrier()
    tile = tl.where(mask, token_ids // TILE, num_tiles - 1)
    next_tile = tl.where(slot + 1 < count, next_ids // TILE, -1)
    next_tile = tl.where(mask, next_tile, tile)
    _store_masses(stats, i, keys >= cut, value_of(orders), tile, next_tile, temperature, num_tiles)


def head(
    source: Source, stats: TileStats, *, edited: bool, elsewhere: int = 0, num_warps: int = 4
) -> tuple[Cuts, Scratch]:
    """Cut the rows that few candidates decide.

    Args:
        source, stats: as `tile_pass` took and gave them, with peaks.
        edited: as for `tile_pass`.
        elsewhere: FLAGS bits of the rows that another sampler filters.
        num_warps: of no consequence for the result.

    Returns:
        The cuts, neutral for rows without filters, and the scratch, whose `undecided` marks the
        rows left over. `stats.masses` of decided rows become those of what is kept.
    """
    num_rows, num_tiles = stats.maxima.shape
    device = stats.maxima.device

    def buffer(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    cuts = Cuts(buffer(num_rows, dtype=torch.float32), buffer(num_rows))
    scratch = Scratch(
        buffer(num_rows),
        buffer(num_rows, MAX_BLOCKS),
        buffer(num_rows, MAX_CANDIDATES),
        buffer(num_rows, MAX_CANDIDATES),
    )
    _head_kernel[(num_rows,)](
        source,
        stats,
        cuts,
        scratch,
        num_tiles,
        elsewhere,
        padded_tiles=max(2, triton.next_power_of_2(num_tiles)),
        edited=edited,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return cuts, scratch
