# mypy: allow-untyped-defs, allow-incomplete-defs
"""The drafter's draw in Triton: a pass over the tiles, then a race of the winner's tokens.

`sampling.speculative.drafting` says what it computes. Both kernels make q's logits in registers,
so they are written only where verification will read them. Of several ranks each draws a candidate
from its own tiles, and all decide on one of them (`sampling.sharded.race`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling.batch import SamplingBatch
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl, triton
from sampling.kernels.logits import TILE, Source, global_tile, load_raw, masked_draft
from sampling.kernels.race import RowTiles, winner
from sampling.kernels.row_params import is_random, load_temperature, noise_key, sampling_row
from sampling.kernels.tile_pass import LOG2_E, block_mass
from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, Purpose, exponential_range, stream
from sampling.race import MIN_SCALE
from sampling.rows import SamplingRows
from sampling.sharded.race import (
    BROKEN,
    CANDIDATE_WORDS,
    Candidates,
    decide,
    store_candidate,
)
from sampling.sharded.tiles import for_kernels, kernel_shard
from sampling.speculative.draws import MAX_RATE
from sampling.vocab_shard import VocabShard

_MAX_RATE, _MIN_SCALE = constexpr(MAX_RATE), constexpr(MIN_SCALE)
_TARGET_TILE = constexpr(stream(Purpose.TARGET, LEVEL_TILE))
_TARGET_TOKEN = constexpr(stream(Purpose.TARGET, LEVEL_TOKEN))
_DRAFT_TILE = constexpr(stream(Purpose.DRAFT, LEVEL_TILE))
_DRAFT_TOKEN = constexpr(stream(Purpose.DRAFT, LEVEL_TOKEN))
_DEPTH_SHIFT = constexpr(stream(Purpose.TARGET, depth=1).bit_length() - 1)


class _Tiles(NamedTuple):
    """The statistics of those of q's tiles that are held."""

    maxima: Tensor  # float32 [n, tiles]
    masses: Tensor  # float32 [n, tiles], at T = 1; empty where all rows are greedy


class _Slots(NamedTuple):
    """Where q's logits are kept."""

    logits: Tensor  # float32 [slots, k, width]
    k: int
    width: int
    first: int | None  # the id of the first column; None, where all are kept, costs nothing


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
    num_tiles,
    tiles: tl.constexpr,
    edited: tl.constexpr,
    scaled: tl.constexpr,
    kept: tl.constexpr,
):
    """Measure the tiles of q, and store q's logits where there are slots for them."""
    i, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * tiles
    tile = first + tl.arange(0, tiles)
    begin = global_tile(source, first)
    end = global_tile(source, tl.minimum(first + tiles, num_tiles))
    token_ids = (begin + tl.arange(0, tiles))[:, None] * TILE + tl.arange(0, TILE)[None, :]
    values = _draft_values(source, columns, i, depth, token_ids, begin, end, edited, scaled)
    if kept:
        _keep(source, slots, i, depth, token_ids, values)
    maxima = tl.max(values, 1)
    at, inside = i * num_tiles + tile, tile < num_tiles
    tl.store(stats.maxima + at, maxima, mask=inside)
    if scaled:
        masses = block_mass(values, maxima, LOG2_E)
        tl.store(stats.masses + at, masses, mask=inside)


@jit
def _keep(source, slots, i, depth, token_ids, values):
    """Store q's logits of those ids that are kept."""
    slot = slots.logits + (sampling_row(source, i) * slots.k + depth) * slots.width
    if slots.first is None:
        tl.store(slot + token_ids, values, mask=token_ids < source.vocab_size)
    else:
        column = token_ids - slots.first
        tl.store(slot + column, values, mask=(column >= 0) & (column < slots.width))


@jit
def _draft_kernel(
    source,
    columns,
    stats,
    token_ids,
    candidates,
    depth,
    num_tiles,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
    scaled: tl.constexpr,
    coupled: tl.constexpr,
):
    """Race the tiles of q that are held, then the winner's tokens; the highest of greedy rows."""
    i = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, padded_tiles)
    own, last = tile, num_tiles - 1
    if source.first_tile is not None:
        own, last = tile - source.first_tile, source.first_tile + num_tiles - 1
    at, inside = i * num_tiles + own, (own >= 0) & (own < num_tiles)
    maxima = tl.load(stats.maxima + at, mask=inside, other=float("-inf"))
    top = tl.max(maxima, 0)
    won = tl.min(tl.where(maxima == top, tile, last), 0)
    masses, noise = tl.zeros_like(maxima), tl.zeros((padded_tiles,), tl.float64)
    if scaled:
        seed, choice, position = noise_key(source, i)
        tile_stream, token_stream = _stream_ids(depth, coupled)
        position += depth if coupled else 0
        random = is_random(source, i)
        if random:
            masses = tl.load(stats.masses + i * num_tiles + own, mask=inside, other=0.0)
            noise = exponential_range(0, position, choice, tile_stream, seed, padded_tiles // 2)
            weights = masses * tl.exp((maxima - top).to(tl.float64))
            won = tl.minimum(winner(noise, weights, tile), last)
    if source.first_tile is not None:  # nothing wins where nothing is left of q
        won = tl.maximum(won, source.first_tile)
    ids = won * TILE + tl.arange(0, TILE)
    values = _draft_values(source, columns, i, depth, ids, won, won + 1, edited, scaled)
    token = tl.min(tl.where(values == top, ids, source.vocab_size - 1), 0)
    if scaled:  # noqa: SIM102 - known to the compiler, the row is not
        if random:
            times = exponential_range(won * TILE, position, choice, token_stream, seed, TILE // 2)
            token = winner(times, tl.exp((values - top).to(tl.float64)), ids)
    token = tl.minimum(token, source.vocab_size - 1)
    if candidates is None:
        tl.store(token_ids + i, token)
    else:
        broken = (maxima != maxima) | (masses != masses) | (maxima == float("inf"))
        state = tl.where(tl.max(broken.to(tl.int32), 0) != 0, BROKEN, 0)
        held = RowTiles(maxima, masses, top, state)
        store_candidate(candidates, i, noise, held, tile == won, token)


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
    shard: VocabShard,
) -> Tensor:
    """Draw the drafts of one depth; arguments as for `drafting.draw_drafts`."""
    logits, shard = for_kernels(logits, shard)
    source = Source.of(logits, batch, rows, None if shard.is_whole else shard)
    source = source._replace(mask_slots=None)  # drafts know no grammar
    n, num_tiles = len(batch.rows), source.num_tiles
    scaled, edited = method != "greedy", batch.needs.edited

    def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    stats = _Tiles(buffer(n, num_tiles), buffer(n if scaled else 0, num_tiles))
    shared = {"edited": edited, "scaled": scaled, "enable_fp_fusion": False}
    tiles = 4 if logits.element_size() == 2 and not edited else 1  # as `tile_pass`
    _tiles_kernel[(n, triton.cdiv(num_tiles, tiles))](
        source,
        columns,
        None if draft_logits is None else _slots(draft_logits, rows),
        stats,
        depth,
        num_tiles,
        tiles=tiles,
        kept=draft_logits is not None,
        num_warps=2 if edited else 1,
        **shared,
    )
    token_ids = buffer(n, dtype=torch.int32)
    words = None if shard.is_whole else buffer(n, CANDIDATE_WORDS, dtype=torch.int32)
    _draft_kernel[(n,)](
        source,
        columns,
        stats,
        token_ids,
        None if words is None else Candidates.of(words),
        depth,
        num_tiles,
        padded_tiles=padded_lanes(shard.num_tiles),
        coupled=method == "coupled",
        **shared,
    )
    if words is None:
        return token_ids
    return decide(source, shard.exchange.all_gather(words), raced=scaled, scaled=True)[0]


def _slots(draft_logits: Tensor, rows: SamplingRows) -> _Slots:
    """The slots that hold the logits of `drafting.kept_shard`."""
    kept = kernel_shard(rows.shard)
    first = None if kept.is_whole else kept.first
    return _Slots(draft_logits, draft_logits.shape[1], kept.width, first)
