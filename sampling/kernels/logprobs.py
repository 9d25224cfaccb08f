# mypy: allow-untyped-defs, allow-incomplete-defs
"""Logprobs in Triton, from the statistics of the tile pass; `sampling.paths.logprobs` defines them.

A row's top tokens lie in the k tiles with the highest maxima, and there in the k chunks with the
highest maxima (equals: the lower number first). Only those k tiles are read for the top list,
and only tiles whose maximum reaches the chosen value are read for its rank, so a tile is read
once at most and most are not read at all.

Values of processed rows are computed on the way, as the race does. A filter cuts a suffix of the
order, so it changes neither the chosen token's rank nor which tokens come first: it only turns
values into -inf. Which ids are beside values of -inf is not defined.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampling.batch import LogprobsOutput
from sampling.device.triton_support import jit, tl, triton
from sampling.kernels.logits import TILE, Source, global_tile
from sampling.kernels.order import order, rank_key
from sampling.kernels.report import flags_of, is_wanted, reported_values, scaled, tile_maxima
from sampling.kernels.tile_pass import TileStats
from sampling.kernels.top_lists import (
    CHUNK,
    CHUNK_WIDTH,
    NOTHING,
    NUM_CHUNKS,
    merge_lists_kernel,
    top_list_kernel,
)
from sampling.noise import TILE as TILE_WIDTH
from sampling.params import MAX_LOGPROB_TOKEN_IDS
from sampling.race import Cut
from sampling.vocab_shard import VocabShard

MAX_TOP = 128  # longer top lists are left to `sampling.paths.logprobs`
TOP_LANES = (8, 32, MAX_TOP)
GIVEN_LANES = 2 * MAX_LOGPROB_TOKEN_IDS  # given ids of a row that are looked at together


class _Work(NamedTuple):
    """The kernels' inputs beside the source, their output, and what they pass on to each other."""

    maxima: Tensor  # float32 [n, tiles], of the processed logits
    raw_maxima: Tensor  # float32 [n, tiles]
    cut_values: Tensor  # float32 [n]
    cut_ids: Tensor  # int32 [n]
    offsets: Tensor  # float64 [n]
    token_ids: Tensor  # int32 or int64 [n]
    given_ids: Tensor  # int32 or int64 [n, J], any row stride
    out: LogprobsOutput
    threshold: Tensor  # float32 [n], the chosen token's value before scaling; inf: no report
    slots: Tensor  # int32 [n, tiles], which of the k chosen tiles it is; k if none
    chunk_maxima: Tensor  # float32 [n, k, TILE / CHUNK]
    keys: Tensor | None  # int64 [n, k], the top lists of one rank of several


@jit(do_not_specialize=["k", "num_given", "given_stride", "filtered"])
def _given_kernel(
    source,
    work,
    k,
    num_given,
    given_stride,
    filtered,
    lanes: tl.constexpr,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
):
    """Report the chosen and the explicit ids of a row; choose the tiles that its top list needs."""
    i = tl.program_id(0).to(tl.int64)
    flags, num_tiles = flags_of(source, i), tl.cdiv(source.vocab_size, TILE)
    wanted = is_wanted(work, i, flags)
    for first in range(0, num_given + 1, lanes):
        lane = first + tl.arange(0, lanes)  # the chosen token, then the explicit ids
        is_given = (lane >= 1) & (lane <= num_given)
        given = tl.load(work.given_ids + i * given_stride + lane - 1, mask=is_given, other=-1)
        ids = tl.where(lane == 0, tl.load(work.token_ids + i), given).to(tl.int32)
        inside = (ids >= 0) & (ids < source.vocab_size)
        values = reported_values(source, i, ids, inside, flags, 0, num_tiles, edited)
        values = tl.where(inside, values, float("-inf"))
        reported = scaled(values, ids, source, work, i, flags, filtered, padded_tiles)
        tl.store(work.out.chosen + i + lane, reported, mask=lane == 0)
        tl.store(work.out.explicit + i * num_given + lane - 1, reported, mask=is_given)
        chosen = tl.max(tl.where(lane == 0, values, float("-inf")), 0)
        tl.store(work.threshold + i, tl.where(wanted, chosen, float("inf")), mask=first == 0)
    tl.store(work.out.ranks + i, 1)

    tile = tl.arange(0, padded_tiles)
    slots = tl.zeros((padded_tiles,), tl.int32) + k
    if wanted:
        maxima = tile_maxima(work, i * num_tiles + tile, tile < num_tiles, flags)
        keys = tl.where(tile < num_tiles, rank_key(order(maxima), tile), NOTHING)
        for j in range(0, tl.minimum(k, num_tiles)):
            best = tl.max(keys, 0)
            slots = tl.where(keys == best, j, slots)
            keys = tl.where(keys == best, NOTHING, keys)
    tl.store(work.slots + i * num_tiles + tile, slots, mask=tile < num_tiles)


@jit(do_not_specialize=["k"])
def _tile_kernel(source, work, k, own_tiles, edited: tl.constexpr):
    """Count a tile's tokens that come before the chosen one; store the maxima of its chunks."""
    num_tiles = tl.cdiv(source.vocab_size, TILE)
    i = (tl.program_id(0) // own_tiles).to(tl.int64)
    tile = global_tile(source, tl.program_id(0) % own_tiles)
    flags, at = flags_of(source, i), i * num_tiles + tile
    slot = tl.load(work.slots + at)
    threshold = tl.load(work.threshold + i)
    reaches = tile_maxima(work, at, True, flags) >= threshold
    if reaches | (slot < k):
        ids = tile * TILE + tl.arange(0, TILE)
        values = reported_values(source, i, ids, ids >= 0, flags, tile, tile + 1, edited)
        if reaches:
            chosen = tl.load(work.token_ids + i)
            before = (values > threshold) | ((values == threshold) & (ids < chosen))
            tl.atomic_add(work.out.ranks + i, tl.sum(before.to(tl.int32), 0))
        if slot < k:
            maxima = tl.max(tl.reshape(values, (NUM_CHUNKS, CHUNK_WIDTH)), 1)
            chunks = (i * k + slot) * NUM_CHUNKS + tl.arange(0, NUM_CHUNKS)
            tl.store(work.chunk_maxima + chunks, maxima)


def gather_logprobs(
    source: Source,
    stats: TileStats,
    cuts: Cut | None,
    offsets: Tensor,
    kept: Tensor,
    token_ids: Tensor,
    *,
    num_top: int,
    explicit_ids: Tensor | None,
    edited: bool,
    shard: VocabShard,
) -> LogprobsOutput:
    """The logprobs of the rows whose flags ask for them; the other rows' are undefined.

    Args:
        source, stats, cuts: as the race's kernels took and gave them, `stats` with raw maxima;
            the drawn tokens must not be counted by penalties yet.
        offsets, kept: float64 and float32 [n], see `race.Picked`.
        token_ids: int32 or int64 [n], the chosen tokens; rows of -1 are left out.
        num_top: at most `MAX_TOP`.
        explicit_ids: int32 or int64 [n, J].
        edited: whether any row has masks, bias or penalties.
        shard: of the source; `stats` are those of all tiles.
    """
    k = min(num_top, source.vocab_size)
    divided = not shard.is_whole
    work = _work(stats, cuts, offsets, kept, token_ids, explicit_ids, k, divided=divided)
    n, num_tiles, num_given = *stats.maxima.shape, work.out.explicit.shape[1]
    filtered = int(cuts is not None)
    # Lengths are rounded up here, so that few kernels serve all of them.
    padded_k = next(size for size in TOP_LANES if k <= size)
    shared = {"edited": edited, "enable_fp_fusion": False}
    report = {"padded_tiles": triton.next_power_of_2(num_tiles), **shared}
    _given_kernel[(n,)](
        source,
        work,
        k,
        num_given,
        work.given_ids.stride(0),
        filtered,
        lanes=GIVEN_LANES,
        num_warps=2,
        **report,
    )
    if divided:
        work = _of_holders(work, shard)
    own_tiles = source.num_tiles
    _tile_kernel[(own_tiles * n,)](source, work, k, own_tiles, num_warps=2, **shared)
    warps = 2 if padded_k <= 32 else 4
    if k:
        top_list_kernel[(n,)](
            source, work, k, filtered, padded_k=padded_k, num_warps=warps, **report
        )
    if divided:
        lengths = {"padded_k": padded_k, "padded_tiles": report["padded_tiles"]}
        _merge(source, work, shard, k, filtered, num_warps=warps, **lengths)
    return work.out


def _merge(
    source: Source,
    work: _Work,
    shard: VocabShard,
    k: int,
    filtered: int,
    **options: int,
) -> None:
    """Make ranks and top lists, in place, from those of all ranks."""
    assert work.keys is not None
    exchange, num_rows = shard.exchange, len(work.out.ranks)
    merge_lists_kernel[(num_rows,)](
        source,
        work,
        exchange.all_gather(work.out.ranks),
        exchange.all_gather(work.keys) if k else work.keys,
        num_rows,
        k,
        filtered,
        num_ranks=exchange.size,
        padded_ranks=triton.next_power_of_2(exchange.size),
        enable_fp_fusion=False,
        **options,
    )


def _of_holders(work: _Work, shard: VocabShard) -> _Work:
    """The work with the given ids' values from the ranks that hold them; others have -inf."""
    out = work.out
    # Each part begins at a multiple of 16 bytes: others would need kernels of their own.
    filler = out.chosen.new_zeros(-len(out.chosen) % 4)
    parts = (work.threshold, filler, out.chosen, filler, out.explicit.view(-1))
    gathered = shard.exchange.all_gather(torch.cat(parts)).amax(0)
    threshold, _, chosen, _, explicit = torch.split(gathered, [len(part) for part in parts])
    out = out._replace(chosen=chosen, explicit=explicit.view_as(out.explicit))
    return work._replace(out=out, threshold=threshold)


def _work(
    stats: TileStats,
    cuts: Cut | None,
    offsets: Tensor,
    kept: Tensor,
    token_ids: Tensor,
    explicit_ids: Tensor | None,
    k: int,
    *,
    divided: bool,
) -> _Work:
    """Buffers for `gather_logprobs`; where nothing is cut, its columns may be any tensor."""
    n, num_tiles = stats.maxima.shape

    def buffer(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty((n, *shape), dtype=dtype, device=stats.maxima.device)

    given_ids = buffer(torch.int64, 0) if explicit_ids is None else explicit_ids
    return _Work(
        maxima=stats.maxima,
        raw_maxima=stats.raw_maxima,
        cut_values=cuts.thresholds if cuts else stats.maxima,
        cut_ids=cuts.last_ids if cuts else token_ids,
        offsets=offsets,
        token_ids=token_ids,
        given_ids=given_ids,
        out=LogprobsOutput(
            chosen=buffer(torch.float32),
            ranks=buffer(torch.int32),
            top_ids=buffer(torch.int32, k),
            top_logprobs=buffer(torch.float32, k),
            explicit=buffer(torch.float32, given_ids.shape[1]),
            kept=kept,
        ),
        threshold=buffer(torch.float32),
        slots=buffer(torch.int32, num_tiles),
        chunk_maxima=buffer(torch.float32, k, TILE_WIDTH // CHUNK),
        keys=buffer(torch.int64, k) if divided else None,
    )
