# mypy: allow-untyped-defs, allow-incomplete-defs
"""The tile pass in Triton: one read of the logits that leaves the maximum and mass of every tile.

`sampling.race` says what the masses are for and derives their error.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling import noise, rows
from sampling.device.triton_support import constexpr, jit, tl, triton
from sampling.kernels.logits import (
    TILE,
    Source,
    global_tile,
    load_raw,
    masked_tiles,
    processed_as,
    unmasked_as,
)
from sampling.kernels.row_params import (
    NUM_FLOATS,
    TEMPERATURE,
    load_flags,
    positive,
    sampling_row,
)
from sampling.race import MAX_SCALE, MIN_SCALE

MANY_TILES = 8192  # several for each warp that a large GPU has running
PEAK = 128  # consecutive ids that share one entry of `TileStats.peaks`
LOG2_E = constexpr(1.4426950408889634)
MASKED_OUT = constexpr(-1.0)  # counts as 0: it is multiplied by exp(-inf) wherever it is used

_PEAK, _PEAKS = constexpr(PEAK), constexpr(noise.TILE // PEAK)
_KEPT = constexpr(rows.KEPT)
_MAX_SCALE, _MIN_SCALE = constexpr(MAX_SCALE), constexpr(MIN_SCALE)


class TileStats(NamedTuple):
    """The statistics of every tile held, float32; from `peaks` on only where they are read."""

    maxima: Tensor  # [n, tiles], of the processed logits
    # [n, tiles], sum of exp((logit - maximum) / T); NaN if the tile is bad, `MASKED_OUT` if only
    # masks left nothing of it.
    masses: Tensor
    peaks: Tensor  # [n, tiles * TILE / PEAK], maxima of smaller blocks, for the filters
    raw_maxima: Tensor  # [n, tiles], of the raw logits
    raw_masses: Tensor  # [n, tiles], at T = 1
    unmasked_maxima: Tensor  # [n, tiles], as `maxima` without masks, of rows that report what is
    unmasked_masses: Tensor  # kept; and as `masses`


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
    masked: tl.constexpr,
    peaked: tl.constexpr,
    reported: tl.constexpr,
    kept: tl.constexpr,
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
            begin, end = global_tile(source, tile), global_tile(source, last)
            values = processed_as(flags, raw, token_ids, source, i, row, begin, end, tiles)
            _measure(
                stats, raw, values, i, tile, scale, num_tiles, tiles, True, False, peaked, reported
            )
            if kept:  # noqa: SIM102 - known to the compiler, the flags are not
                if flags & _KEPT:
                    values = unmasked_as(flags, raw, token_ids, source, i, row, begin, end)
                    _measure_unmasked(stats, values, i, tile, scale, num_tiles, tiles)
    else:
        raw, token_ids = _load_tiles(source, i, first, tiles)
        values = raw
        if masked:
            begin = global_tile(source, first)
            values = masked_tiles(load_flags(source, row), raw, source, i, begin, tiles)
        _measure(
            stats, raw, values, i, first, scale, num_tiles, tiles, False, masked, peaked, reported
        )
        if kept:  # noqa: SIM102 - known to the compiler, the flags are not
            if load_flags(source, row) & _KEPT:
                _measure_unmasked(stats, raw, i, first, scale, num_tiles, tiles)


@jit
def _load_tiles(source, i, tile, tiles: tl.constexpr):
    """Load logits and ids of `tiles` tiles, [tiles, TILE]."""
    tile = global_tile(source, tile)
    token_ids = (tl.arange(0, tiles) + tile)[:, None] * TILE + tl.arange(0, TILE)[None, :]
    return load_raw(source, i, token_ids, token_ids >= 0), token_ids


@jit
def _highest(values, tiles: tl.constexpr, peaked: tl.constexpr):
    """Maxima of [tiles, TILE], by way of the peaks where maxima come from them.

    Otherwise Triton 3.6 gives every thread whole tiles, and takes 13 s to compile that.
    """
    if peaked:
        values = tl.max(tl.reshape(values, (tiles, _PEAKS, _PEAK)), 2)
    return tl.max(values, 1)


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
    masked: tl.constexpr,
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
    if edited:  # processing may have hidden what makes the row bad, or made it so
        broken = (raw != raw) | (raw == float("inf"))
        worst = tl.max(tl.where(broken, 2, (raw > float("-inf")).to(tl.int32)), 1)
        masses = tl.where((worst == 1) & (maxima == float("-inf")), MASKED_OUT, masses)
        masses = tl.where(worst == 2, float("nan"), masses)
    elif masked:  # noqa: SIM102 - known to the compiler; a bad row has left a NaN in the mass
        if tl.min(maxima, 0) == float("-inf"):
            some = _highest((raw > float("-inf")).to(tl.int32), tiles, peaked)
            hidden = (maxima == float("-inf")) & (masses == 0.0) & (some != 0)
            masses = tl.where(hidden, MASKED_OUT, masses)
    tl.store(stats.maxima + out, maxima, mask=inside)
    tl.store(stats.masses + out, masses, mask=inside)
    if reported:
        raw_maxima = tl.max(raw, 1)
        tl.store(stats.raw_maxima + out, raw_maxima, mask=inside)
        raw_masses = block_mass(raw, raw_maxima, LOG2_E)
        tl.store(stats.raw_masses + out, raw_masses, mask=inside)


@jit
def _measure_unmasked(stats, values, i, tile, scale, num_tiles, tiles: tl.constexpr):
    """Store the maxima and masses of `tiles` tiles of logit row i before masks."""
    tile += tl.arange(0, tiles)
    out = i * num_tiles + tile
    maxima = tl.max(values, 1)
    tl.store(stats.unmasked_maxima + out, maxima, mask=tile < num_tiles)
    masses = block_mass(values, maxima, scale)
    tl.store(stats.unmasked_masses + out, masses, mask=tile < num_tiles)


def tile_pass(
    source: Source,
    stats: TileStats | None = None,
    /,
    *,
    edited: bool,
    masked: bool = False,
    peaked: bool,
    reported: bool,
    kept: bool = False,
    tiles: int | None = None,
    steps: int | None = None,
    num_warps: int | None = None,
) -> TileStats:
    """Read every logit once and return the statistics of every tile.

    Args:
        source: logits [n, width] and the parameters of their rows.
        stats: what is written to; None allocates it.
        edited: whether any row has masks, bias or penalties.
        masked: whether these are grammars' masks alone, which takes less time.
        peaked: whether any row is filtered and `peaks` are needed.
        reported: whether raw logprobs are needed.
        kept: whether any row reports what masks and filters kept.
        tiles, steps, num_warps: launch shape, of no consequence for the result; None takes the
            best. `steps` is for edited rows only.
    """
    num_rows = len(source.rows)
    num_tiles = source.num_tiles
    edited, masked = edited and not masked, masked and source.mask_slots is not None
    # Measured on an H200: one warp a tile, more bytes in flight where a tile has few. What an
    # edited row needs to know is looked up once for several tiles, where there are many to do.
    # Grammars' masks beside other edits want two tiles a warp; alone they want registers.
    narrow = source.logits.element_size() == 2 and not edited
    with_edits = edited and source.mask_slots is not None
    tiles = tiles or (2 if with_edits or (narrow and masked) else 4 if narrow else 1)
    steps = steps or (4 if edited and num_rows * num_tiles >= MANY_TILES else 1)
    num_warps = num_warps or (2 if edited and not with_edits else 1)
    if stats is None:
        stats = empty_stats(source, num_tiles, peaked=peaked, reported=reported, kept=kept)
    _tile_pass_kernel[(triton.cdiv(num_tiles, tiles * steps) * num_rows,)](
        source,
        stats,
        num_tiles,
        steps,
        tiles=tiles,
        edited=edited,
        masked=masked,
        peaked=peaked,
        reported=reported,
        kept=kept,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return stats


def tile_pass_for(
    source: Source, needs: rows.SamplingNeeds, stats: TileStats | None = None
) -> TileStats:
    """Make the tile pass that a draw or a verification of rows with these needs begins with."""
    return tile_pass(
        source,
        stats,
        edited=needs.edited,
        masked=needs.only_grammars,
        peaked=needs.filtered,
        reported=needs.logprobs,
        kept=needs.kept,
    )


def empty_stats(
    source: Source, num_tiles: int, *, peaked: bool, reported: bool, kept: bool
) -> TileStats:
    """Allocate what the pass writes; what is not wanted is empty."""
    num_rows = len(source.rows)

    def buffer(wanted: bool, columns: int = num_tiles) -> Tensor:
        shape = (num_rows, columns) if wanted else (0,)
        return torch.empty(shape, dtype=torch.float32, device=source.logits.device)

    return TileStats(
        buffer(True),
        buffer(True),
        buffer(peaked, num_tiles * noise.TILE // PEAK),
        buffer(reported),
        buffer(reported),
        buffer(kept),
        buffer(kept),
    )
