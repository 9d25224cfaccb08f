# mypy: allow-untyped-defs, allow-incomplete-defs
"""The shortlist, the filters' first stage: most rows are cut among a few candidates.

The tile pass leaves the maximum of every block of `PEAK` ids, its peak. The k highest tokens all
lie at or above the k-th highest peak, so only blocks whose peak reaches it can hold one: a top-k
of 50 reads about 50 blocks again, and only the few candidates found there are sorted. A top-p
needs nothing more where the `SHORTLIST` highest peaks hold its mass. Rows that cannot be decided
like this (flat distributions, large k, crowds of ties) are left to `filters.bracket`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sampling import noise, rows
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl
from sampling.filters.candidates import (
    HIGHEST_KEY,
    MAX_BLOCKS,
    MAX_CANDIDATES,
    collect,
    last_kept,
    load_candidates,
    store_masses,
)
from sampling.filters.cut_state import DECIDED, FIRST, LAST_ID
from sampling.kernels.logits import Source
from sampling.kernels.order import key_id, order, value_of
from sampling.kernels.row_params import (
    FILTERED,
    load_filters,
    load_flags,
    load_log_min_p,
    sampling_row,
)
from sampling.kernels.tile_pass import PEAK, TileStats, scale_of
from sampling.race import Cut

SHORTLIST = rows.LARGE_TOP_K  # peaks looked at where top-k does not ask for fewer

_SHORTLIST = constexpr(SHORTLIST)
_BLOCKS, _CANDIDATES = constexpr(MAX_BLOCKS), constexpr(MAX_CANDIDATES)
_BLOCKS_PER_TILE = constexpr(noise.TILE // PEAK)
# The mass of the candidates is hardly ever more than this times that of the peaks among them.
_HIDDEN = constexpr(1.25)


class Scratch(NamedTuple):
    """Per-row working memory of the filters; all stages share `states`, the rest is this one's."""

    states: Tensor  # int32 [n], a `CutState`
    blocks: Tensor  # int32 [n, MAX_BLOCKS], the blocks selected
    keys: Tensor  # int64 [n, MAX_CANDIDATES], `rank_key` of the candidates
    # Where ranks gather candidates: int32 [n], twice how many, -1 of rows without; and float64
    # [n], the mass that `last_kept` takes.
    counts: Tensor | None = None
    masses: Tensor | None = None


@jit
def _threshold(peaks, top, wanted):
    """Find a value that at least `wanted` peaks reach and few more; -inf if there are fewer."""
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
    """A row's filters beside its highest logit; values within the kernels."""

    temperature: Any
    top_k: Any  # the vocabulary's size where it is off
    top_p: Any
    floor: Any  # float64, min-p cuts below


@jit
def load_row_filters(source, row, top):
    """The `_Filters` of a sampling row whose highest logit is `top`."""
    given = load_filters(source, row)
    top_k = tl.where(given.top_k == 0, source.vocab_size, given.top_k)
    floor = top + given.temperature * load_log_min_p(source, row)
    return _Filters(given.temperature, top_k, given.top_p, floor)


@jit
def _load_peaks(stats, i, num_tiles, padded_tiles: tl.constexpr):
    """The peaks of logit row i, -inf beyond its blocks."""
    ids = tl.arange(0, padded_tiles * _BLOCKS_PER_TILE)
    num_peaks = num_tiles * _BLOCKS_PER_TILE
    return tl.load(stats.peaks + i * num_peaks + ids, mask=ids < num_peaks, other=float("-inf"))


@jit
def _is_lone_top_p(source, filters):
    """Whether a row has a top-p and no other filter."""
    alone = (filters.top_k == source.vocab_size) & (filters.floor == float("-inf"))
    return alone & (filters.top_p < 1.0)


@jit
def _is_hopeless(source, filters, peaks, top, all_mass):
    """Whether a lone top-p wants much more mass than all peaks together have.

    The highest of them have less still: this finds out early, without its search, what `_select`
    would. Where there are fewer peaks than the shortlist takes, the candidates are all the tokens
    there are, and the row can be decided whatever their mass.
    """
    enough = tl.sum((peaks > float("-inf")).to(tl.int32), 0) >= _SHORTLIST
    mass = tl.sum(tl.exp2((peaks - top) * scale_of(filters.temperature)), 0)
    return _is_lone_top_p(source, filters) & enough & (_HIDDEN * mass <= filters.top_p * all_mass)


@jit
def _select(scratch, i, peaks, top, filters, padded_tiles: tl.constexpr):
    """Write the blocks that can hold the highest tokens, top-k of them or `SHORTLIST`.

    Returns their threshold, their number and the mass of their peaks.
    """
    ids = tl.arange(0, padded_tiles * _BLOCKS_PER_TILE)
    threshold = _threshold(peaks, top, tl.minimum(filters.top_k, _SHORTLIST))
    selected = (peaks >= threshold) & (peaks > float("-inf"))
    selected = selected & (peaks.to(tl.float64) >= filters.floor)
    slot = tl.cumsum(selected.to(tl.int32), 0) - 1
    tl.store(scratch.blocks + i * _BLOCKS + slot, ids, mask=selected & (slot < _BLOCKS))
    weights = tl.where(selected, tl.exp2((peaks - top) * scale_of(filters.temperature)), 0.0)
    return threshold, tl.sum(selected.to(tl.int32), 0), tl.sum(weights, 0)


@jit
def _prospects(source, filters, threshold):
    """Say whether the candidates can decide a row.

    Returns whether they are all that top-k and min-p leave, and whether a lone top-p may end among
    them.
    """
    closed = (filters.top_k <= _SHORTLIST) | (filters.floor >= threshold.to(tl.float64))
    return closed, _is_lone_top_p(source, filters)


@jit
def _store_cut(cuts, scratch, i, value, last_id):
    """Store a row's cut and mark it as decided."""
    tl.store(cuts.thresholds + i, value)
    tl.store(cuts.last_ids + i, last_id)
    tl.store(scratch.states + i, DECIDED)


@jit(do_not_specialize=["elsewhere"])
def _shortlist_kernel(
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
    if scratch.counts is not None:
        tl.store(scratch.counts + i, -1)
    tile_ids = tl.arange(0, padded_tiles)
    at = i * num_tiles + tile_ids
    maxima = tl.load(stats.maxima + at, mask=tile_ids < num_tiles, other=float("-inf"))
    masses = tl.load(stats.masses + at, mask=tile_ids < num_tiles, other=0.0)
    _store_cut(cuts, scratch, i, float("-inf"), LAST_ID)
    row = sampling_row(source, i)
    top = tl.max(maxima, 0)
    broken = tl.max((masses != masses).to(tl.int32), 0) != 0
    broken = broken | (top == float("-inf")) | (top == float("inf"))
    flags = load_flags(source, row)
    if broken | ((flags & FILTERED) == 0) | ((flags & elsewhere) != 0):
        return  # a bad row keeps the masses that say so
    filters = load_row_filters(source, row, top)
    peaks = _load_peaks(stats, i, num_tiles, padded_tiles)
    tl.store(scratch.states + i, FIRST)
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
    all_mass = tl.where(closed, -1.0, all_mass)
    if scratch.counts is not None:
        tl.debug_barrier()  # another thread may have stored -1
        tl.store(scratch.counts + i, 2 * count)
        tl.store(scratch.masses + i, all_mass)
    else:
        if count > _CANDIDATES:
            return
        tl.debug_barrier()
        found = load_candidates(scratch, i, count)
        decide_among(
            stats, cuts, scratch, i, found, count, top, filters, all_mass, num_tiles, padded_tiles
        )


@jit
def decide_among(
    stats,
    cuts,
    scratch,
    i,
    found,
    count,
    top,
    filters,
    all_mass,
    num_tiles,
    padded_tiles: tl.constexpr,
):
    """Cut logit row i among all its candidates, if they reach what is wanted."""
    cut = last_kept(found.keys, count, top, filters, all_mass)
    if cut != HIGHEST_KEY:
        _store_cut(cuts, scratch, i, value_of((cut >> 32).to(tl.int32)), key_id(cut))
        tile_ids = tl.arange(0, padded_tiles)
        nothing = tl.zeros((padded_tiles,), tl.float32)
        tl.store(stats.masses + i * num_tiles + tile_ids, nothing, mask=tile_ids < num_tiles)
        tl.debug_barrier()
        store_masses(stats, i, found, count, cut, filters.temperature, num_tiles)


def shortlist(
    source: Source,
    stats: TileStats,
    *,
    edited: bool,
    elsewhere: int = 0,
    divided: bool = False,
    num_warps: int = 4,
) -> tuple[Cut, Scratch]:
    """Cut the rows that few candidates decide; the first stage of the filters.

    Args:
        source, stats: as `tile_pass` took and gave them, with peaks.
        edited: as for `tile_pass`.
        elsewhere: FLAGS bits of the rows that another sampler filters.
        divided: only find the candidates of the source's rank, for `sampling.sharded.stages`.
        num_warps: of no consequence for the result.

    Returns:
        The cuts, neutral for rows without filters, and the scratch, whose `states` mark the rows
        left over. `stats.masses` of decided rows become those of what is kept.
    """
    num_rows, num_tiles = stats.maxima.shape
    device = stats.maxima.device

    def buffer(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    cuts = Cut(buffer(num_rows, dtype=torch.float32), buffer(num_rows))
    scratch = Scratch(
        buffer(num_rows),
        buffer(num_rows, MAX_BLOCKS),
        buffer(num_rows, MAX_CANDIDATES, dtype=torch.int64),
        buffer(num_rows) if divided else None,
        buffer(num_rows, dtype=torch.float64) if divided else None,
    )
    _shortlist_kernel[(num_rows,)](
        source,
        stats,
        cuts,
        scratch,
        num_tiles,
        elsewhere,
        padded_tiles=padded_lanes(num_tiles),
        edited=edited,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return cuts, scratch
