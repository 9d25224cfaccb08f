# mypy: allow-untyped-defs, allow-incomplete-defs
"""The drafter's draw in Triton: a pass over the tiles, then a race of the winner's tokens.

`sampling.speculative.drafting` says what it computes. Both kernels make q's logits in registers,
so they are written only where verification will read them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling.batch import SamplingBatch
from sampling.kernels.logits import TILE, Source, load_raw, masked_draft
from sampling.kernels.race import winner
from sampling.kernels.row_params import is_random, load_temperature, noise_key, sampling_row
from sampling.kernels.tile_pass import LOG2_E, block_mass
from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, Purpose, exponential_range, stream
from sampling.race import MIN_SCALE
from sampling.rows import SamplingRows
from sampling.speculative.draws import MAX_RATE
from sampling.triton_support import constexpr, jit, padded_lanes, tl, triton

_MAX_RATE, _MIN_SCALE = constexpr(MAX_RATE), constexpr(MIN_SCALE)
_TARGET_TILE = constexpr(stream(Purpose.TARGET, LEVEL_TILE))
_TARGET_TOKEN = constexpr(stream(Purpose.TARGET, LEVEL_TOKEN))
_DRAFT_TILE = constexpr(stream(Purpose.DRAFT, LEVEL_TILE))
_DRAFT_TOKEN = constexpr(stream(Purpose.DRAFT, LEVEL_TOKEN))
_DEPTH_SHIFT = constexpr(stream(Purpose.TARGET, depth=1).bit_length() - 1)


class _Tiles(NamedTuple):
    """The statistics of q's tiles."""

    maxima: Tensor  # float32 [n, tiles]
    masses: Tensor  # float32 [n, tiles], at T = 1; empty where all rows are greedy


@jit
def _draft_values(
    source,
    columns,
    i,
    depth,
    token_ids,
    first_tile,
    last_tile,
    edited: tl.constexpr,
    scaled: tl.constexpr,
):
    """Compute q's logits of some tokens, float32."""
    if columns is not None:
        inside = token_ids < source.vocab_size
        column = tl.load(columns + token_ids, mask=inside, other=-1)
        at = source.logits + i * source.logits_stride + column
        values = tl.load(at, mask=column >= 0, other=float("-inf")).to(tl.float32)
    else:
        values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        row = sampling_row(source, i)
        position = tl.load(source.positions + i) + depth
        values = masked_draft(values, token_ids, source, row, position, first_tile, last_tile)
    if scaled:
        rate = 1.0 / load_temperature(source, i)
        values *= tl.minimum(tl.maximum(rate, _MIN_SCALE), _MAX_RATE).to(tl.float32)
    return values


@jit
def _tiles_kernel(
    source,
    columns,
    slots,
    stats,
    depth,
    k,
    num_tiles,
    tiles: tl.constexpr,
    edited: tl.constexpr,
    scaled: tl.constexpr,
):
    """Measure the tiles of q, and store q's logits where there are slots for them."""
    i, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * tiles
    tile = first + tl.arange(0, tiles)
    token_ids = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    last = tl.minimum(first + tiles, num_tiles)
    values = _draft_values(source, columns, i, depth, token_ids, first, last, edited, scaled)
    if slots is not None:
        row = sampling_row(source, i)
        slot = slots + (row * k + depth) * source.vocab_size
        tl.store(slot + token_ids, values, mask=token_ids < source.vocab_size)
    maxima = tl.max(values, 1)
    at, inside = i * num_tiles + tile, tile < num_tiles
    tl.store(stats.maxima + at, maxima, mask=inside)
    if scaled:
        masses = block_mass(values, maxima, LOG2_E)
        tl.store(stats.masses + at, masses, mask=inside)


@jit
def _draft_kernel(
    source,
    columns,
    stats,
    token_ids,
    depth,
    num_tiles,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
    scaled: tl.constexpr,
    coupled: tl.constexpr,
):
    """Race the tiles of q, then the winner's tokens; the highest logit of greedy rows."""
    i = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, padded_tiles)
    at, inside = stats.maxima + i * num_tiles + tile, tile < num_tiles
    maxima = tl.load(at, mask=inside, other=float("-inf"))
    top = tl.max(maxima, 0)
    won = tl.min(tl.where(maxima == top, tile, num_tiles - 1), 0)
    if scaled:
        seed, choice, position = noise_key(source, i)
        tile_stream, token_stream = _stream_ids(depth, coupled)
        position += depth if coupled else 0
        random = is_random(source, i)
        if random:
            at = stats.masses + i * num_tiles + tile
            masses = tl.load(at, mask=inside, other=0.0)
            noise = exponential_range(0, position, choice, tile_stream, seed, padded_tiles // 2)
            weights = masses * tl.exp((maxima - top).to(tl.float64))
            won = tl.minimum(winner(noise, weights, tile), num_tiles - 1)
    ids = won * TILE + tl.arange(0, TILE)
    values = _draft_values(source, columns, i, depth, ids, won, won + 1, edited, scaled)
    token = tl.min(tl.where(values == top, ids, source.vocab_size - 1), 0)
    if scaled:  # noqa: SIM102 - known to the compiler, the row is not
        if random:
            noise = exponential_range(won * TILE, position, choice, token_stream, seed, TILE // 2)
            token = winner(noise, tl.exp((values - top).to(tl.float64)), ids)
    tl.store(token_ids + i, tl.minimum(token, source.vocab_size - 1))


@jit
def _stream_ids(depth, coupled: tl.constexpr):
    """The noise streams of the race's two levels, for the tiles and for the tokens."""
    if coupled:
        tile_stream, token_stream = _TARGET_TILE + depth * 0, _TARGET_TOKEN + depth * 0
    else:
        shift = depth << _DEPTH_SHIFT
        tile_stream, token_stream = _DRAFT_TILE + shift, _DRAFT_TOKEN + shift
    return tile_stream, token_stream


def draw_drafts(
    logits: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
    depth: int,
    method: str,
    draft_logits: Tensor | None,
    columns: Tensor | None,
) -> Tensor:
    """Draw the drafts of one depth; arguments as for `drafting.draw_drafts`."""
    source = Source.of(logits, batch, rows)._replace(mask_slots=None)  # drafts know no grammar
    n, num_tiles = len(batch.rows), triton.cdiv(rows.vocab_size, TILE)
    scaled, edited = method != "greedy", batch.needs.edited

    def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    stats = _Tiles(buffer(n, num_tiles), buffer(n if scaled else 0, num_tiles))
    shared = {"edited": edited, "scaled": scaled, "enable_fp_fusion": False}
    k = 0 if draft_logits is None else draft_logits.shape[1]
    tiles = 4 if logits.element_size() == 2 and not edited else 1  # as `tile_pass`
    _tiles_kernel[(n, triton.cdiv(num_tiles, tiles))](
        source,
        columns,
        draft_logits,
        stats,
        depth,
        k,
        num_tiles,
        tiles=tiles,
        num_warps=2 if edited else 1,
        **shared,
    )
    token_ids = buffer(n, dtype=torch.int32)
    _draft_kernel[(n,)](
        source,
        columns,
        stats,
        token_ids,
        depth,
        num_tiles,
        padded_tiles=padded_lanes(num_tiles),
        coupled=method == "coupled",
        **shared,
    )
    return token_ids
