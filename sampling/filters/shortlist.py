# mypy: allow-untyped-defs, allow-incomplete-defs
"""Min-p, top-k and top-p in Triton without sorting the vocabulary: the head.

The tile pass leaves the maximum of every `PEAK` ids. The k highest tokens all lie at or above
the k-th highest peak, so only blocks whose peak reaches it can hold one: a top-k of 50 reads
about 50 blocks again, and only the few candidates found there are sorted. A top-p needs nothing
more where the `HEAD` highest peaks hold its mass. Rows that cannot be decided like this (flat
distributions, large k, crowds of ties) are marked for `bracket_kernels`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sampling import noise, rows
from sampling.filters.candidates import (
    HIGHEST_KEY,
    MAX_BLOCKS,
    MAX_CANDIDATES,
    collect,
    last_kept,
    load_candidates,
    store_masses,
)
from sampling.kernels.logits import FLAGS, NUM_FLOATS, NUM_INTS, Source
from sampling.kernels.order import order, value_of
from sampling.kernels.race import Cuts
from sampling.kernels.tile_pass import PEAK, TileStats, scale_of
from sampling.race import NO_LAST
from sampling.triton_support import constexpr, jit, tl, triton

HEAD = rows.LARGE_TOP_K  # peaks looked at where top-k does not ask for fewer

FILTERED = constexpr(rows.FILTERED)
TOP_K, TOP_P = constexpr(rows.TOP_K), constexpr(rows.TOP_P)
LOG_MIN_P, TEMPERATURE = constexpr(rows.LOG_MIN_P), constexpr(rows.TEMPERATURE)
LAST_ID = constexpr(NO_LAST)  # the largest int32 and what cuts use for "all equals"
BLOCKS_PER_TILE = constexpr(noise.TILE // PEAK)
_HEAD, _BLOCKS, _CANDIDATES = constexpr(HEAD), constexpr(MAX_BLOCKS), constexpr(MAX_CANDIDATES)
_HIDDEN = constexpr(1.25)  # mass of candidates over that of the peaks among them, at most likely


class Scratch(NamedTuple):
    """Per-row working memory of the filters."""

    undecided: Tensor  # int32 [n], 1 where the head could not decide
    blocks: Tensor  # int32 [n, MAX_BLOCKS]
    orders: Tensor  # int32 [n, MAX_CANDIDATES], `order` of the candidates' logits
    token_ids: Tensor  # int32 [n, MAX_CANDIDATES]


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


class _Filters(NamedTuple):
    """A row's parameters; values within the kernels."""

    temperature: Any
    top_k: Any  # the vocabulary's size where it is off
    top_p: Any
    floor: Any  # float64, min-p cuts below


@jit
def _load_filters(source, row, top):
    floats = source.floats + row * NUM_FLOATS
    temperature, top_p = tl.load(floats + TEMPERATURE), tl.load(floats + TOP_P)
    top_k = tl.load(source.ints + row * NUM_INTS + TOP_K)
    top_k = tl.where(top_k == 0, source.vocab_size, top_k)
    return _Filters(temperature, top_k, top_p, top + temperature * tl.load(floats + LOG_MIN_P))


@jit
def _load_peaks(stats, i, num_tiles, padded_tiles: tl.constexpr):
    ids = tl.arange(0, padded_tiles * BLOCKS_PER_TILE)
    num_peaks = num_tiles * BLOCKS_PER_TILE
    return tl.load(stats.peaks + i * num_peaks + ids, mask=ids < num_peaks, other=float("-inf"))


@jit
def _is_lone_top_p(source, filters):
    alone = (filters.top_k == source.vocab_size) & (filters.floor == float("-inf"))
    return alone & (filters.top_p < 1.0)


@jit
def _is_hopeless(source, filters, peaks, top, all_mass):
    """Whether a lone top-p wants much more mass than all peaks have, not to speak of the highest.

    What `_select` would find out, without its search. With fewer peaks than it wants, the
    candidates are all there is, and need not have any mass.
    """
    enough = tl.sum((peaks > float("-inf")).to(tl.int32), 0) >= _HEAD
    mass = tl.sum(tl.exp2((peaks - top) * scale_of(filters.temperature)), 0)
    return _is_lone_top_p(source, filters) & enough & (_HIDDEN * mass <= filters.top_p * all_mass)


@jit
def _select(scratch, i, peaks, top, filters, padded_tiles: tl.constexpr):
    """Write the blocks that can hold the highest tokens, `_HEAD` or top-k; return their threshold,
    their number and the mass of their peaks."""
    ids = tl.arange(0, padded_tiles * BLOCKS_PER_TILE)
    threshold = _threshold(peaks, top, tl.minimum(filters.top_k, _HEAD))
    selected = (peaks >= threshold) & (peaks > float("-inf"))
    selected = selected & (peaks.to(tl.float64) >= filters.floor)
    slot = tl.cumsum(selected.to(tl.int32), 0) - 1
    tl.store(scratch.blocks + i * _BLOCKS + slot, ids, mask=selected & (slot < _BLOCKS))
    weights = tl.where(selected, tl.exp2((peaks - top) * scale_of(filters.temperature)), 0.0)
    return threshold, tl.sum(selected.to(tl.int32), 0), tl.sum(weights, 0)


@jit
def _prospects(source, filters, threshold):
    """Whether the candidates are all that top-k and min-p leave, and whether a lone top-p may end
    among them."""
    closed = (filters.top_k <= _HEAD) | (filters.floor >= threshold.to(tl.float64))
    return closed, _is_lone_top_p(source, filters)


@jit
def _store_cut(cuts, scratch, i, value, last_id):
    """Cut a row and call it decided."""
    tl.store(cuts.thresholds + i, value)
    tl.store(cuts.last_ids + i, last_id)
    tl.store(scratch.undecided + i, 0)


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
    _store_cut(cuts, scratch, i, float("-inf"), LAST_ID)
    row = tl.load(source.rows + i).to(tl.int64)
    top = tl.max(maxima, 0)
    broken = tl.max((masses != masses).to(tl.int32), 0) != 0
    broken = broken | (top == float("-inf")) | (top == float("inf"))
    flags = tl.load(source.ints + row * NUM_INTS + FLAGS)
    if broken | ((flags & FILTERED) == 0) | ((flags & elsewhere) != 0):
        return  # a bad row keeps the masses that say so
    filters = _load_filters(source, row, top)
    peaks = _load_peaks(stats, i, num_tiles, padded_tiles)
    tl.store(scratch.undecided + i, 1)
    weights = masses * tl.exp((maxima - top).to(tl.float64) / filters.temperature)
    all_mass = tl.sum(weights, 0)
    if _is_hopeless(source, filters, peaks, top, all_mass):
        return

    threshold, num_blocks, peak_mass = _select(scratch, i, peaks, top, filters, padded_tiles)
    closed, open_top_p = _prospects(source, filters, threshold)
    # Most candidates are peaks: a top-p that wants much more mass than theirs would look in vain.
    open_top_p = open_top_p & (_HIDDEN * peak_mass > filters.top_p * all_mass)
    if ((closed | open_top_p) == 0) | (num_blocks > _BLOCKS):
        return
    tl.debug_barrier()  # blocks were written by other threads
    count = collect(source, scratch, i, threshold, filters.floor, num_blocks, num_tiles, edited)
    if count > _CANDIDATES:
        return
    tl.debug_barrier()
    found = load_candidates(scratch, i, count)
    cut = last_kept(found.keys, count, top, filters, tl.where(closed, -1.0, all_mass))
    if cut == HIGHEST_KEY:
        return
    last_id = 0x7FFFFFFF - (cut & 0x7FFFFFFF).to(tl.int32)
    _store_cut(cuts, scratch, i, value_of((cut >> 32).to(tl.int32)), last_id)
    tl.store(stats.masses + at, tl.zeros_like(masses), mask=tile_ids < num_tiles)
    tl.debug_barrier()
    store_masses(stats, i, found, count, cut, filters.temperature, num_tiles)


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
