# mypy: allow-untyped-defs, allow-incomplete-defs
"""The two-level race in Triton: each program picks a row's tile, then the token in it.

`sampling.race` says why two levels are exact and derives the error of a tile's float32 mass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sampling import noise, rows
from sampling.batch import NOTHING_ALLOWED, UNUSABLE_LOGITS
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl
from sampling.kernels.logits import TILE, Source, is_held, load_raw, processed
from sampling.kernels.order import is_kept
from sampling.kernels.row_params import (
    NORMALIZED,
    PROCESSED,
    RANDOM,
    load_flags,
    load_temperature,
    noise_key,
    sampling_row,
)
from sampling.kernels.tile_pass import TileStats
from sampling.noise import Purpose, exponential_range, stream
from sampling.race import LEAST_CUT, Cut

_UNUSABLE, _NOTHING_ALLOWED = constexpr(UNUSABLE_LOGITS), constexpr(NOTHING_ALLOWED)
_KEPT, _LEAST_CUT = constexpr(rows.KEPT), constexpr(LEAST_CUT)
_TILE_STREAM = constexpr(stream(Purpose.TARGET, noise.LEVEL_TILE))
_TOKEN_STREAM = constexpr(stream(Purpose.TARGET, noise.LEVEL_TOKEN))


class Picked(NamedTuple):
    """The tokens that `pick` drew."""

    token_ids: Tensor  # int32 [n], 0 where bad
    bad: Tensor  # uint8 [n], as in `SamplerOutput`
    offsets: Tensor  # float64 [n], see `store_offset`
    kept: Tensor  # float32 [n], see `store_kept`


class RowTiles(NamedTuple):
    """The statistics of one logit row's tiles; values within the kernels."""

    maxima: Any  # [padded_tiles], -inf beyond the tiles
    masses: Any  # [padded_tiles], 0 beyond the tiles
    top: Any  # the highest logit
    bad: Any  # 0, or why no token can be drawn from it, as in `SamplerOutput`


@jit
def _first(condition, index, axis: tl.constexpr):
    """The lowest index at which a condition holds, a large number if nowhere."""
    return tl.min(tl.where(condition, index, 2147483647), axis)


@jit
def log_sum(maxima, masses, temperature):
    """The maximum M and log sum exp((logit - M) / T), from tile statistics, float64."""
    top = tl.max(maxima, 0)
    gaps = (maxima - tl.where(top == float("-inf"), 0.0, top)).to(tl.float64) / temperature
    return top, tl.log(tl.sum(masses * tl.exp(gaps), 0))


@jit
def load_tiles(stats, i, num_tiles, padded_tiles: tl.constexpr):
    """Load the `RowTiles` of logit row i."""
    tile_ids = tl.arange(0, padded_tiles)
    inside = tile_ids < num_tiles
    at = i * num_tiles + tile_ids
    maxima = tl.load(stats.maxima + at, mask=inside, other=float("-inf"))
    masses = tl.load(stats.masses + at, mask=inside, other=0.0)
    broken = (masses != masses) | (maxima == float("inf"))
    top = tl.max(tl.where(broken, float("-inf"), maxima), 0)
    masked_out = tl.min(masses, 0) < 0.0
    bad = tl.where(top > float("-inf"), 0, tl.where(masked_out, _NOTHING_ALLOWED, _UNUSABLE))
    bad = tl.where(tl.max(broken.to(tl.int32), 0) != 0, _UNUSABLE, bad)
    return RowTiles(maxima, masses, top, bad)


@jit
def winner(noise, weights, index):
    """The lowest index among the smallest noise / weight."""
    keys = tl.where(weights > 0, noise / weights, float("inf"))
    return _first(keys == tl.min(keys, 0), index, 0)


@jit
def draw_token(
    source,
    cuts,
    i,
    tiles,
    random,
    num_tiles,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
    filtered: tl.constexpr,
):
    """Draw the target's token at logit row i from its `RowTiles`; any token where bad.

    It is -1 where its tile is not held.
    """
    rate = 1.0 / load_temperature(source, i)
    rate = tl.minimum(rate, 1.7976931348623157e308)  # finite, for gaps of zero
    seed, choice, position = noise_key(source, i)
    noise = exponential_range(0, position, choice, _TILE_STREAM, seed, padded_tiles // 2)
    if random:
        gaps = (tiles.top - tiles.maxima).to(tl.float64)
        keys = noise * tl.exp(gaps * rate)  # inf for a masked tile
        keys = tl.where(tiles.masses > 0, keys / tiles.masses, float("inf"))
        tile = _first(keys == tl.min(keys, 0), tl.arange(0, padded_tiles), 0)
        tile = tl.minimum(tile, num_tiles - 1)  # a bad row must read its own
        token = _race(source, cuts, tile, rate, i, position, choice, seed, edited, filtered)
    else:
        token = highest_token(source, tiles, i, edited)
    return token


@jit
def store_offset(source, stats, offsets, i, tiles, num_tiles, padded_tiles: tl.constexpr):
    """Store what logprobs subtract from row i's logits: a log-sum-exp, or 0 in the logits modes."""
    row = sampling_row(source, i)
    flags = load_flags(source, row)
    tile_ids = tl.arange(0, padded_tiles)
    inside, at = tile_ids < num_tiles, i * num_tiles + tile_ids
    raw_maxima = tl.load(stats.raw_maxima + at, mask=inside, other=float("-inf"))
    raw_masses = tl.load(stats.raw_masses + at, mask=inside, other=0.0)
    raw_top, offset = log_sum(raw_maxima, raw_masses, 1.0)
    offset += raw_top
    if (flags & PROCESSED) != 0:
        _, offset = log_sum(tiles.maxima, tiles.masses, load_temperature(source, i))
    offset = tl.where((flags & NORMALIZED) != 0, offset, 0.0)
    tl.store(offsets + i, offset)


@jit
def store_kept(
    source, stats, logprobs, i, tiles, num_tiles, padded_tiles: tl.constexpr, kept: tl.constexpr
):
    """Store row i's kept logprob as `paths.kept_logprobs` defines it; 0 where it is not asked for.

    Its `RowTiles` hold the masses that masks and filters left.
    """
    logprob = tl.full((), 0.0, tl.float64)
    if kept:  # noqa: SIM102 - known to the compiler, the flags are not
        if load_flags(source, sampling_row(source, i)) & _KEPT:
            temperature = load_temperature(source, i)
            tile_ids = tl.arange(0, padded_tiles)
            inside, at = tile_ids < num_tiles, i * num_tiles + tile_ids
            maxima = tl.load(stats.unmasked_maxima + at, mask=inside, other=float("-inf"))
            masses = tl.load(stats.unmasked_masses + at, mask=inside, other=0.0)
            all_top, all_mass = log_sum(maxima, masses, temperature)
            top, mass = log_sum(tiles.maxima, tiles.masses, temperature)
            gap = top.to(tl.float64) - all_top.to(tl.float64)
            logprob = gap / temperature + (mass - all_mass)
            logprob = tl.where(logprob > -_LEAST_CUT, 0.0, logprob)
    tl.store(logprobs + i, logprob.to(tl.float32))


@jit(do_not_specialize=["elsewhere"])
def _pick_kernel(
    source,
    stats,
    cuts,
    picked,
    num_tiles,
    elsewhere,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
    filtered: tl.constexpr,
    reported: tl.constexpr,
    kept: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    flags = load_flags(source, sampling_row(source, i))
    random = ((flags & RANDOM) != 0) & ((flags & elsewhere) == 0)
    tiles = load_tiles(stats, i, num_tiles, padded_tiles)
    token = draw_token(source, cuts, i, tiles, random, num_tiles, padded_tiles, edited, filtered)
    tl.store(picked.token_ids + i, tl.where(tiles.bad != 0, 0, token))
    tl.store(picked.bad + i, tiles.bad)
    if reported:
        store_offset(source, stats, picked.offsets, i, tiles, num_tiles, padded_tiles)
        store_kept(source, stats, picked.kept, i, tiles, num_tiles, padded_tiles, kept)


@jit
def _race(
    source,
    cuts,
    tile,
    rate,
    i,
    position,
    choice,
    seed,
    edited: tl.constexpr,
    filtered: tl.constexpr,
):
    """Race a tile's tokens at rate = 1 / T; return the winner, -1 where they are not held."""
    token_ids = tile * TILE + tl.arange(0, TILE)
    values = load_raw(source, i, token_ids, token_ids >= 0)
    keys = exponential_range(tile * TILE, position, choice, _TOKEN_STREAM, seed, TILE // 2)
    if edited:
        values = processed(values, token_ids, source, i, tile, tile + 1)
    keys *= tl.exp((tl.max(values, 0) - values).to(tl.float64) * rate)
    if filtered:
        cut = tl.load(cuts.thresholds + i)
        last = tl.load(cuts.last_ids + i)
        kept = is_kept(values, token_ids, cut, last)
        keys = tl.where(kept, keys, float("inf"))
    token = tl.minimum(_first(keys == tl.min(keys, 0), token_ids, 0), source.vocab_size - 1)
    return tl.where(is_held(source, tile), token, -1)


@jit
def highest_token(source, tiles, i, edited: tl.constexpr):
    """The lowest id among the highest logits, -1 where it is not held."""
    tile = _first(tiles.maxima == tiles.top, tl.arange(0, tiles.maxima.shape[0]), 0)
    tile = tl.minimum(tile, tl.cdiv(source.vocab_size, TILE) - 1)
    token_ids = tile * TILE + tl.arange(0, TILE)
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        values = processed(values, token_ids, source, i, tile, tile + 1)
    token = tl.minimum(_first(values == tiles.top, token_ids, 0), source.vocab_size - 1)
    return tl.where(is_held(source, tile), token, -1)


def pick(
    source: Source,
    stats: TileStats,
    cuts: Cut | None,
    *,
    edited: bool,
    reported: bool,
    kept: bool = False,
    elsewhere: int = 0,
    num_warps: int = 8,
) -> Picked:
    """Race the tiles, then the winner's tokens; take the highest logit of greedy rows.

    Args:
        source, stats: as `tile_pass` took and gave them; masses are those of what the cuts keep.
        cuts: None keeps everything.
        edited, reported, kept: as for `tile_pass`.
        elsewhere: FLAGS bits of the rows whose token another sampler draws; any token will do.
        num_warps: of no consequence for the result.

    Returns:
        Tokens and flags; penalties have not counted the tokens yet.
    """
    num_rows, num_tiles = stats.maxima.shape

    def buffer(dtype: torch.dtype) -> Tensor:
        return torch.empty(num_rows, dtype=dtype, device=stats.maxima.device)

    picked = Picked(
        buffer(torch.int32), buffer(torch.uint8), buffer(torch.float64), buffer(torch.float32)
    )
    _pick_kernel[(num_rows,)](
        source,
        stats,
        cuts or Cut(stats.maxima, picked.token_ids),
        picked,
        num_tiles,
        elsewhere,
        padded_tiles=padded_lanes(num_tiles),
        edited=edited,
        filtered=cuts is not None,
        reported=reported,
        kept=kept,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return picked
