# mypy: allow-untyped-defs, allow-incomplete-defs
"""The two-level race in Triton: one pass over the logits, then a pick per row.

See `sampling.race` for why two levels are exact and how far a tile's float32 mass may be off.
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
from sampling.noise import Purpose, exponential_range, stream
from sampling.race import MAX_SCALE, MIN_SCALE, NO_LAST
from sampling.triton_support import constexpr, jit, tl, triton

PEAK = 128  # consecutive ids that share one entry of `TileStats.peaks`

_PEAK, _PEAKS = constexpr(PEAK), constexpr(noise.TILE // PEAK)
_MAX_SCALE, _MIN_SCALE = constexpr(MAX_SCALE), constexpr(MIN_SCALE)
_NO_LAST = constexpr(NO_LAST)
_TILE_STREAM = constexpr(stream(Purpose.TARGET, noise.LEVEL_TILE))
_TOKEN_STREAM = constexpr(stream(Purpose.TARGET, noise.LEVEL_TOKEN))
_SEED, _CHOICE = constexpr(rows.SEED), constexpr(rows.CHOICE)
_TEMPERATURE = constexpr(rows.TEMPERATURE)
_RANDOM, _PROCESSED = constexpr(rows.RANDOM), constexpr(rows.PROCESSED)
_NORMALIZED = constexpr(rows.NORMALIZED)


class TileStats(NamedTuple):
    """What the tile pass leaves, float32; the last three only where something reads them."""

    maxima: Tensor  # [n, tiles], of the processed logits
    masses: Tensor  # [n, tiles], sum of exp((logit - maximum) / T), NaN if the tile is bad
    peaks: Tensor  # [n, tiles * TILE / PEAK], maxima of smaller blocks, for the filters
    raw_maxima: Tensor  # [n, tiles], of the raw logits
    raw_masses: Tensor  # [n, tiles], at T = 1


@jit
def scale_of(temperature):
    """log2(e) / T in float32, kept finite and above 0: a mask's gap times 0 would be NaN."""
    inverse = tl.minimum(1.0 / tl.where(temperature == 0.0, 1.0, temperature), _MAX_SCALE)
    scale = tl.minimum(inverse * 1.4426950408889634, _MAX_SCALE)
    return tl.maximum(scale, _MIN_SCALE).to(tl.float32)


@jit
def block_mass(values, maxima, scale):
    """Sum of exp((value - maximum) / T) along axis 1 of [tiles, TILE]."""
    shift = tl.where(maxima == float("-inf"), 0.0, maxima)  # a masked tile must not give NaN
    return tl.sum(tl.exp2((values - shift[:, None]) * scale), 1)


@jit
def _tile_pass_kernel(
    source,
    stats,
    num_tiles,
    tiles: tl.constexpr,
    edited: tl.constexpr,
    peaked: tl.constexpr,
    reported: tl.constexpr,
):
    i = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) * tiles + tl.arange(0, tiles)
    token_ids = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    raw = load_raw(source, i, token_ids, token_ids >= 0)
    values = raw
    if edited:
        first = tl.program_id(0) * tiles
        values = processed(raw, token_ids, source, i, first, tl.minimum(first + tiles, num_tiles))
    out = i * num_tiles + tile
    inside = tile < num_tiles
    if peaked:
        peaks = tl.max(tl.reshape(values, (tiles, _PEAKS, _PEAK)), 2)
        maxima = tl.max(peaks, 1)
        columns = tl.arange(0, _PEAKS)[None, :]
        tl.store(stats.peaks + out[:, None] * _PEAKS + columns, peaks, mask=inside[:, None])
    else:
        maxima = tl.max(values, 1)
    row = tl.load(source.rows + i).to(tl.int64)
    temperature = tl.load(source.floats + row * NUM_FLOATS + _TEMPERATURE)
    masses = block_mass(values, maxima, scale_of(temperature))
    if edited:  # processing may have hidden what makes the row bad
        broken = tl.max(((raw != raw) | (raw == float("inf"))).to(tl.int32), 1)
        masses = tl.where(broken != 0, float("nan"), masses)
    tl.store(stats.maxima + out, maxima, mask=inside)
    tl.store(stats.masses + out, masses, mask=inside)
    if reported:
        raw_maxima = tl.max(raw, 1)
        tl.store(stats.raw_maxima + out, raw_maxima, mask=inside)
        raw_masses = block_mass(raw, raw_maxima, 1.4426950408889634)
        tl.store(stats.raw_masses + out, raw_masses, mask=inside)


def tile_pass(
    source: Source,
    *,
    edited: bool,
    peaked: bool,
    reported: bool,
    tiles: int | None = None,
    num_warps: int | None = None,
) -> TileStats:
    """Read every logit once.

    Args:
        source: logits [n, width] and the parameters of their rows.
        edited: whether any row has masks, bias or penalties.
        peaked: whether any row is filtered and `peaks` are needed.
        reported: whether raw logprobs are needed.
        tiles, num_warps: launch shape, of no consequence for the result; None takes the best.
    """
    # Measured on an H200: one warp a tile, more bytes in flight where a tile has few.
    tiles = tiles or (4 if source.logits.element_size() == 2 and not edited else 1)
    num_warps = num_warps or (2 if edited else 1)
    num_rows = len(source.rows)
    num_tiles = triton.cdiv(source.vocab_size, noise.TILE)

    def buffer(wanted: bool, columns: int = num_tiles) -> Tensor:
        shape = (num_rows, columns) if wanted else (0,)
        return torch.empty(shape, dtype=torch.float32, device=source.logits.device)

    stats = TileStats(
        buffer(True),
        buffer(True),
        buffer(peaked, num_tiles * noise.TILE // PEAK),
        buffer(reported),
        buffer(reported),
    )
    _tile_pass_kernel[(triton.cdiv(num_tiles, tiles), num_rows)](
        source,
        stats,
        num_tiles,
        tiles=tiles,
        edited=edited,
        peaked=peaked,
        reported=reported,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return stats


class Cuts(NamedTuple):
    """Where each row is cut: kept are higher logits, and equal ones up to that id."""

    thresholds: Tensor  # float32 [n]
    last_ids: Tensor  # int32 [n]


class Picked(NamedTuple):
    """What the pick leaves."""

    token_ids: Tensor  # int32 [n], 0 where bad
    bad: Tensor  # bool [n]
    offsets: Tensor  # float32 [n], see `Drawn.offsets`


@jit
def _first(condition, index, axis: tl.constexpr):
    """The lowest index at which a condition holds, a large number if nowhere."""
    return tl.min(tl.where(condition, index, 2147483647), axis)


@jit
def _log_sum(maxima, masses, temperature):
    """The maximum M and log sum exp((logit - M) / T), from tile statistics, float64."""
    top = tl.max(maxima, 0)
    gaps = (maxima - tl.where(top == float("-inf"), 0.0, top)).to(tl.float64) / temperature
    return top, tl.log(tl.sum(masses * tl.exp(gaps), 0))


@jit
def _pick_kernel(
    source,
    stats,
    cuts,
    picked,
    num_tiles,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
    filtered: tl.constexpr,
    reported: tl.constexpr,
    elsewhere: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    tile_ids = tl.arange(0, padded_tiles)
    inside = tile_ids < num_tiles
    at = i * num_tiles + tile_ids
    maxima = tl.load(stats.maxima + at, mask=inside, other=float("-inf"))
    masses = tl.load(stats.masses + at, mask=inside, other=0.0)
    row = tl.load(source.rows + i).to(tl.int64)
    flags = tl.load(source.ints + row * NUM_INTS + FLAGS)
    temperature = tl.load(source.floats + row * NUM_FLOATS + _TEMPERATURE)
    temperature = tl.where(temperature == 0.0, 1.0, temperature)
    rate = tl.minimum(1.0 / temperature, 1.7976931348623157e308)  # finite, for gaps of zero
    seed = tl.load(source.ints + row * NUM_INTS + _SEED)
    choice = tl.load(source.ints + row * NUM_INTS + _CHOICE)
    position = tl.load(source.positions + i)
    noise = exponential_range(0, position, choice, _TILE_STREAM, seed, padded_tiles // 2)
    broken = (masses != masses) | (maxima == float("inf"))
    top = tl.max(tl.where(broken, float("-inf"), maxima), 0)
    bad = (tl.max(broken.to(tl.int32), 0) != 0) | (top == float("-inf"))

    if ((flags & _RANDOM) != 0) & ((flags & elsewhere) == 0):
        keys = noise * tl.exp((top - maxima).to(tl.float64) * rate)  # inf for a masked tile
        keys = tl.where(masses > 0, keys / masses, float("inf"))
        tile = _first(keys == tl.min(keys, 0), tile_ids, 0)
        tile = tl.minimum(tile, num_tiles - 1)  # a bad row must read its own
        token = _race(source, cuts, tile, rate, i, position, choice, seed, edited, filtered)
    else:
        token = _greedy(source, maxima, top, i, edited)
    token = tl.where(bad, 0, token)
    tl.store(picked.token_ids + i, token)
    tl.store(picked.bad + i, bad)
    if reported:
        raw_maxima = tl.load(stats.raw_maxima + at, mask=inside, other=float("-inf"))
        raw_masses = tl.load(stats.raw_masses + at, mask=inside, other=0.0)
        raw_top, offset = _log_sum(raw_maxima, raw_masses, 1.0)
        offset += raw_top
        if (flags & _PROCESSED) != 0:
            _, offset = _log_sum(maxima, masses, temperature)
        offset = tl.where((flags & _NORMALIZED) != 0, offset, 0.0)
        tl.store(picked.offsets + i, offset.to(tl.float32))


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
    """The winner of a tile's tokens at rate = 1 / T."""
    token_ids = tile * TILE + tl.arange(0, TILE)
    values = load_raw(source, i, token_ids, token_ids >= 0)
    keys = exponential_range(tile * TILE, position, choice, _TOKEN_STREAM, seed, TILE // 2)
    if edited:
        values = processed(values, token_ids, source, i, tile, tile + 1)
    keys *= tl.exp((tl.max(values, 0) - values).to(tl.float64) * rate)
    if filtered:
        cut = tl.load(cuts.thresholds + i)
        last = tl.load(cuts.last_ids + i)
        kept = (values > cut) | ((values == cut) & (token_ids <= last))
        keys = tl.where(kept, keys, float("inf"))
    return tl.minimum(_first(keys == tl.min(keys, 0), token_ids, 0), source.vocab_size - 1)


@jit
def _greedy(source, maxima, top, i, edited: tl.constexpr):
    """The lowest id among the highest logits."""
    tile = _first(maxima == top, tl.arange(0, maxima.shape[0]), 0)
    tile = tl.minimum(tile, tl.cdiv(source.vocab_size, TILE) - 1)
    token_ids = tile * TILE + tl.arange(0, TILE)
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        values = processed(values, token_ids, source, i, tile, tile + 1)
    return tl.minimum(_first(values == top, token_ids, 0), source.vocab_size - 1)


def pick(
    source: Source,
    stats: TileStats,
    cuts: Cuts | None,
    *,
    edited: bool,
    reported: bool,
    elsewhere: int = 0,
    num_warps: int = 8,
) -> Picked:
    """Race the tiles, then the winner's tokens; take the highest logit of greedy rows.

    Args:
        source, stats: as `tile_pass` took and gave them; masses are those of what the cuts keep.
        cuts: None keeps everything.
        edited, reported: as for `tile_pass`.
        elsewhere: FLAGS bits of the rows whose token another sampler draws; any token will do.
        num_warps: of no consequence for the result.

    Returns:
        Tokens and flags; penalties have not counted the tokens yet.
    """
    num_rows, num_tiles = stats.maxima.shape

    def buffer(dtype: torch.dtype) -> Tensor:
        return torch.empty(num_rows, dtype=dtype, device=stats.maxima.device)

    picked = Picked(buffer(torch.int32), buffer(torch.bool), buffer(torch.float32))
    _pick_kernel[(num_rows,)](
        source,
        stats,
        cuts or Cuts(stats.maxima, picked.token_ids),
        picked,
        num_tiles,
        padded_tiles=max(2, triton.next_power_of_2(num_tiles)),
        edited=edited,
        filtered=cuts is not None,
        reported=reported,
        elsewhere=elsewhere,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return picked
