# mypy: allow-untyped-defs, allow-incomplete-defs
"""The tile pass in Triton: one read of the logits that leaves the maximum and mass of every tile.

`sampling.race` says what the masses are for and derives their error.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling import noise
from sampling.kernels.logits import TILE, Source, load_raw, processed_as
from sampling.kernels.row_params import (
    NUM_FLOATS,
    TEMPERATURE,
    load_flags,
    positive,
    sampling_row,
)
from sampling.race import MAX_SCALE, MIN_SCALE
from sampling.triton_support import constexpr, jit, tl, triton

MANY_TILES = 8192  # several for each warp that a large GPU has running
PEAK = 128  # consecutive ids that share one entry of `TileStats.peaks`
LOG2_E = constexpr(1.4426950408889634)

_PEAK, _PEAKS = constexpr(PEAK), constexpr(noise.TILE // PEAK)
_MAX_SCALE, _MIN_SCALE = constexpr(MAX_SCALE), constexpr(MIN_SCALE)


class TileStats(NamedTuple):
    """The statistics of every tile, float32; the last three only where something reads them."""

    maxima: Tensor  # [n, tiles], of the processed logits
    masses: Tensor  # [n, tiles], sum of exp((logit - maximum) / T), NaN if the tile is bad
    peaks: Tensor  # [n, tiles * TILE / PEAK], maxima of smaller blocks, for the filters
    raw_maxima: Tensor  # [n, tiles], of the raw logits
    raw_masses: Tensor  # [n, tiles], at T = 1


@jit
def scale_of(temperature):
    """log2(e) / T in float32, kept finite and above 0: a mask's gap times 0 would be NaN."""
    inverse = tl.minimum(1.0 / positive(temperature), _MAX_SCALE)
    scale = tl.minimum(inverse * LOG2_E, _MAX_SCALE)
    return tl.maximum(scale, _MIN_SCALE).to(tl.float32)


@jit
def block_mass(values, maxima, scale):
    """Sum of exp((value - maximum) / T) along axis 1 of [tiles, TILE]."""
    shift = tl.where(maxima == float("-inf"), 0.0, maxima)  # a masked tile must not give NaN
    return tl.sum(tl.exp2((values - shift[:, None]) * scale), 1)


@jit(do_not_specialize=["steps"])
def _tile_pass_kernel(
    source,
    stats,
    num_tiles,
    steps,
    tiles: tl.constexpr,
    edited: tl.constexpr,
    peaked: tl.constexpr,
    reported: tl.constexpr,
):
    """Measure `steps` times `tiles` tiles of one row."""
    programs = tl.cdiv(num_tiles, tiles * steps)  # a row
    i = (tl.program_id(0) // programs).to(tl.int64)
    first = tl.program_id(0) % programs * (tiles * steps)
    row = sampling_row(source, i)
    scale = scale_of(tl.load(source.floats + row * NUM_FLOATS + TEMPERATURE))
    if edited:
        flags = load_flags(source, row)
        for tile in range(first, tl.minimum(first + tiles * steps, num_tiles), tiles):
            raw, token_ids = _load_tiles(source, i, tile, tiles)
            last = tl.minimum(tile + tiles, num_tiles)
            values = processed_as(flags, raw, token_ids, source, i, row, tile, last)
            _measure(stats, raw, values, i, tile, scale, num_tiles, tiles, edited, peaked, reported)
    else:
        raw, token_ids = _load_tiles(source, i, first, tiles)
        _measure(stats, raw, raw, i, first, scale, num_tiles, tiles, edited, peaked, reported)


@jit
def _load_tiles(source, i, tile, tiles: tl.constexpr):
    """Load logits and ids of `tiles` tiles, [tiles, TILE]."""
    token_ids = (tl.arange(0, tiles) + tile)[:, None] * TILE + tl.arange(0, TILE)[None, :]
    return load_raw(source, i, token_ids, token_ids >= 0), token_ids


@jit
def _measure(
    stats,
    raw,
    values,
    i,
    tile,
    scale,
    num_tiles,
    tiles: tl.constexpr,
    edited: tl.constexpr,
    peaked: tl.constexpr,
    reported: tl.constexpr,
):
    """Store the statistics of `tiles` tiles of logit row i, from `tile` on."""
    tile += tl.arange(0, tiles)
    out = i * num_tiles + tile
    inside = tile < num_tiles
    if peaked:
        peaks = tl.max(tl.reshape(values, (tiles, _PEAKS, _PEAK)), 2)
        maxima = tl.max(peaks, 1)
        columns = tl.arange(0, _PEAKS)[None, :]
        tl.store(stats.peaks + out[:, None] * _PEAKS + columns, peaks, mask=inside[:, None])
    else:
        maxima = tl.max(values, 1)
    masses = block_mass(values, maxima, scale)
    if edited:  # processing may have hidden what makes the row bad
        broken = tl.max(((raw != raw) | (raw == float("inf"))).to(tl.int32), 1)
        masses = tl.where(broken != 0, float("nan"), masses)
    tl.store(stats.maxima + out, maxima, mask=inside)
    tl.store(stats.masses + out, masses, mask=inside)
    if reported:
        raw_maxima = tl.max(raw, 1)
        tl.store(stats.raw_maxima + out, raw_maxima, mask=inside)
        raw_masses = block_mass(raw, raw_maxima, LOG2_E)
        tl.store(stats.raw_masses + out, raw_masses, mask=inside)


def tile_pass(
    source: Source,
    *,
    edited: bool,
    peaked: bool,
    reported: bool,
    tiles: int | None = None,
    steps: int | None = None,
    num_warps: int | None = None,
) -> TileStats:
    """Read every logit once and return the statistics of every tile.

    Args:
        source: logits [n, width] and the parameters of their rows.
        edited: whether any row has masks, bias or penalties.
        peaked: whether any row is filtered and `peaks` are needed.
        reported: whether raw logprobs are needed.
        tiles, steps, num_warps: launch shape, of no consequence for the result; None takes the
            best. `steps` is for edited rows only.
    """
    num_rows = len(source.rows)
    num_tiles = triton.cdiv(source.vocab_size, noise.TILE)
    # Measured on an H200: one warp a tile, more bytes in flight where a tile has few. What an
    # edited row needs to know is looked up once for several tiles, where there are many to do.
    tiles = tiles or (4 if source.logits.element_size() == 2 and not edited else 1)
    steps = steps or (4 if edited and num_rows * num_tiles >= MANY_TILES else 1)
    num_warps = num_warps or (2 if edited else 1)

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
    _tile_pass_kernel[(triton.cdiv(num_tiles, tiles * steps) * num_rows,)](
        source,
        stats,
        num_tiles,
        steps,
        tiles=tiles,
        edited=edited,
        peaked=peaked,
        reported=reported,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return stats
