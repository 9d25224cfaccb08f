# mypy: allow-untyped-defs, allow-incomplete-defs
"""The tile pass in Triton: one read of the logits, and what it leaves of every tile.

See `sampling.race` for what the masses are for and how far off they may be.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling import noise, rows
from sampling.logit_kernels import NUM_FLOATS, TILE, Source, load_raw, processed
from sampling.race import MAX_SCALE, MIN_SCALE
from sampling.triton_support import constexpr, jit, tl, triton

PEAK = 128  # consecutive ids that share one entry of `TileStats.peaks`

_PEAK, _PEAKS = constexpr(PEAK), constexpr(noise.TILE // PEAK)
_MAX_SCALE, _MIN_SCALE = constexpr(MAX_SCALE), constexpr(MIN_SCALE)
_TEMPERATURE = constexpr(rows.TEMPERATURE)


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
