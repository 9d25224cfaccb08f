# mypy: allow-untyped-defs, allow-incomplete-defs
"""The two-level race in Triton: the pick of a tile and of a token in it, a program a row.

See `sampling.race` for why two levels are exact and how far a tile's float32 mass may be off.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sampling import noise, rows
from sampling.kernels.logits import (
    FLAGS,
    NUM_FLOATS,
    NUM_INTS,
    TILE,
    Source,
    load_raw,
    processed,
)
from sampling.kernels.tile_pass import TileStats
from sampling.noise import Purpose, exponential_range, stream
from sampling.triton_support import constexpr, jit, tl, triton

_TILE_STREAM = constexpr(stream(Purpose.TARGET, noise.LEVEL_TILE))
_TOKEN_STREAM = constexpr(stream(Purpose.TARGET, noise.LEVEL_TOKEN))
_SEED, _CHOICE = constexpr(rows.SEED), constexpr(rows.CHOICE)
_TEMPERATURE = constexpr(rows.TEMPERATURE)
_RANDOM, _PROCESSED = constexpr(rows.RANDOM), constexpr(rows.PROCESSED)
_NORMALIZED = constexpr(rows.NORMALIZED)


class Cuts(NamedTuple):
    """Where each row is cut: kept are higher logits, and equal ones up to that id."""

    thresholds: Tensor  # float32 [n]
    last_ids: Tensor  # int32 [n]


class Picked(NamedTuple):
    """What the pick leaves."""

    token_ids: Tensor  # int32 [n], 0 where bad
    bad: Tensor  # bool [n]
    offsets: Tensor  # float64 [n], see `store_offset`


class RowTiles(NamedTuple):
    """What the tile pass has left of a logit row; values within the kernels."""

    maxima: Any  # [padded_tiles], -inf beyond the tiles
    masses: Any  # [padded_tiles], 0 beyond the tiles
    top: Any  # the highest logit
    bad: Any  # whether no token can be drawn from it


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
    """`RowTiles` of logit row i."""
    tile_ids = tl.arange(0, padded_tiles)
    inside = tile_ids < num_tiles
    at = i * num_tiles + tile_ids
    maxima = tl.load(stats.maxima + at, mask=inside, other=float("-inf"))
    masses = tl.load(stats.masses + at, mask=inside, other=0.0)
    broken = (masses != masses) | (maxima == float("inf"))
    top = tl.max(tl.where(broken, float("-inf"), maxima), 0)
    bad = (tl.max(broken.to(tl.int32), 0) != 0) | (top == float("-inf"))
    return RowTiles(maxima, masses, top, bad)


@jit
def load_temperature(source, i):
    """Of logit row i, 1 where it is greedy."""
    row = tl.load(source.rows + i).to(tl.int64)
    temperature = tl.load(source.floats + row * NUM_FLOATS + _TEMPERATURE)
    return tl.where(temperature == 0.0, 1.0, temperature)


@jit
def is_random(source, i):
    row = tl.load(source.rows + i).to(tl.int64)
    return (tl.load(source.ints + row * NUM_INTS + FLAGS) & _RANDOM) != 0


@jit
def noise_key(source, i):
    """Seed, choice and the position of the token that logit row i draws."""
    row = tl.load(source.rows + i).to(tl.int64)
    seed = tl.load(source.ints + row * NUM_INTS + _SEED)
    choice = tl.load(source.ints + row * NUM_INTS + _CHOICE)
    return seed, choice, tl.load(source.positions + i)


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
    """The target's draw at logit row i, given its `RowTiles`; any token where bad."""
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
    """What logprobs subtract from the logits of row i: a log-sum-exp, or 0 in the logits modes."""
    row = tl.load(source.rows + i).to(tl.int64)
    flags = tl.load(source.ints + row * NUM_INTS + FLAGS)
    tile_ids = tl.arange(0, padded_tiles)
    inside, at = tile_ids < num_tiles, i * num_tiles + tile_ids
    raw_maxima = tl.load(stats.raw_maxima + at, mask=inside, other=float("-inf"))
    raw_masses = tl.load(stats.raw_masses + at, mask=inside, other=0.0)
    raw_top, offset = log_sum(raw_maxima, raw_masses, 1.0)
    offset += raw_top
    if (flags & _PROCESSED) != 0:
        _, offset = log_sum(tiles.maxima, tiles.masses, load_temperature(source, i))
    offset = tl.where((flags & _NORMALIZED) != 0, offset, 0.0)
    tl.store(offsets + i, offset)


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
):
    i = tl.program_id(0).to(tl.int64)
    flags = tl.load(source.ints + tl.load(source.rows + i).to(tl.int64) * NUM_INTS + FLAGS)
    random = ((flags & _RANDOM) != 0) & ((flags & elsewhere) == 0)
    tiles = load_tiles(stats, i, num_tiles, padded_tiles)
    token = draw_token(source, cuts, i, tiles, random, num_tiles, padded_tiles, edited, filtered)
    tl.store(picked.token_ids + i, tl.where(tiles.bad, 0, token))
    tl.store(picked.bad + i, tiles.bad)
    if reported:
        store_offset(source, stats, picked.offsets, i, tiles, num_tiles, padded_tiles)


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
def highest_token(source, tiles, i, edited: tl.constexpr):
    """The lowest id among the highest logits."""
    tile = _first(tiles.maxima == tiles.top, tl.arange(0, tiles.maxima.shape[0]), 0)
    tile = tl.minimum(tile, tl.cdiv(source.vocab_size, TILE) - 1)
    token_ids = tile * TILE + tl.arange(0, TILE)
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        values = processed(values, token_ids, source, i, tile, tile + 1)
    return tl.minimum(_first(values == tiles.top, token_ids, 0), source.vocab_size - 1)


def padded(num_tiles: int) -> int:
    """Lanes of a kernel that holds one number a tile."""
    lanes: int = max(2, triton.next_power_of_2(num_tiles))
    return lanes


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

    picked = Picked(buffer(torch.int32), buffer(torch.bool), buffer(torch.float64))
    _pick_kernel[(num_rows,)](
        source,
        stats,
        cuts or Cuts(stats.maxima, picked.token_ids),
        picked,
        num_tiles,
        elsewhere,
        padded_tiles=padded(num_tiles),
        edited=edited,
        filtered=cuts is not None,
        reported=reported,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return picked
