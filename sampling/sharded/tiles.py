# mypy: allow-untyped-defs, allow-incomplete-defs
"""The statistics of all tiles on every rank: each measures its own, and all get them.

With them every rank chooses tiles, takes sums and finds cuts as one rank alone does, by the same
kernels and to the same bit; only what lies in tokens of other ranks is sent afterwards.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sampling import noise
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl, triton
from sampling.kernels.logits import Source
from sampling.kernels.tile_pass import PEAK, TileStats, empty_stats, tile_pass_for
from sampling.race import Cut
from sampling.rows import SamplingNeeds
from sampling.vocab_shard import VocabShard

ALIGNED = 16  # numbers: Triton compiles strides that this divides apart from others
UNIT = 64  # words that fields begin at multiples of, so that all are aligned alike
PEAKS = noise.TILE // PEAK
NUM_ROWS = 128  # that a program settles

_UNIT, _ROWS = constexpr(UNIT), constexpr(NUM_ROWS)


def for_kernels(logits: Tensor, shard: VocabShard) -> tuple[Tensor, VocabShard]:
    """The logits that a rank's kernels read, and whose ids they are: those of `kernel_shard`."""
    read = kernel_shard(shard)
    return (logits if read is shard else shard.whole_rows(logits)), read


def kernel_shard(shard: VocabShard) -> VocabShard:
    """The ids whose logits a rank's kernels read: the shard's, or all where rows are gathered.

    Kernels add up a tile in the order in which threads have loaded it, which is another where 16
    divides the stride of rows than where it does not. The strides of the whole vocabulary and of
    its shards are alike in this only if 16 divides the vocabulary. Where it does not, a cut could
    differ from one rank's by a last bit of a mass: whole rows are gathered there.
    """
    if shard.is_whole or shard.vocab_size % ALIGNED == 0:
        return shard
    return VocabShard.whole(shard.vocab_size)


@jit(do_not_specialize=["num_rows", "rank_words"])
def _merge_kernel(
    gathered,
    whole,
    num_rows,
    rank_words,
    num_tiles,
    most_tiles,
    num_ranks: tl.constexpr,
    sizes: tl.constexpr,
    padded_tiles: tl.constexpr,
):
    """Put a row's statistics of all ranks, gathered [ranks, words], side by side."""
    i = tl.program_id(0).to(tl.int64)
    field = 0
    for f in tl.static_range(7):
        if sizes[f]:
            lane = tl.arange(0, padded_tiles * sizes[f])
            for rank in tl.static_range(num_ranks):
                first = rank * num_tiles // num_ranks
                count = ((rank + 1) * num_tiles // num_ranks - first) * sizes[f]
                own = gathered + rank * rank_words + field + i * count + lane
                values = tl.load(own, mask=lane < count)
                at = (i * num_tiles + first) * sizes[f] + lane
                tl.store(whole[f] + at, values, mask=lane < count)
            field += tl.cdiv(num_rows * most_tiles * sizes[f], _UNIT) * _UNIT


def whole_tiles(source: Source, needs: SamplingNeeds, shard: VocabShard) -> TileStats:
    """Make the tile pass over a rank's logits, and gather the statistics of all.

    Args:
        source: of the shard.
        needs: as for `tile_pass_for`.

    Returns:
        The statistics of all tiles, the same on every rank.
    """
    num_rows, most, device = len(source.rows), shard.most_tiles, source.logits.device
    peaks, raw, kept = PEAKS * needs.filtered, int(needs.logprobs), int(needs.kept)
    sizes = (1, 1, peaks, raw, raw, kept, kept)  # words a tile of each field
    words = [-(-num_rows * most * size // UNIT) * UNIT for size in sizes]
    packed = torch.empty(sum(words), dtype=torch.float32, device=device)
    own = source.num_tiles
    fields = [
        field[: num_rows * own * size].view(num_rows, own * size) if size else field
        for field, size in zip(torch.split(packed, words), sizes, strict=True)
    ]
    tile_pass_for(source, needs, TileStats(*fields))
    num_tiles = shard.num_tiles
    whole = empty_stats(
        source, num_tiles, peaked=needs.filtered, reported=needs.logprobs, kept=needs.kept
    )
    _merge_kernel[(num_rows,)](
        shard.exchange.all_gather(packed),
        whole,
        num_rows,
        len(packed),
        num_tiles,
        most,
        num_ranks=shard.exchange.size,
        sizes=sizes,
        padded_tiles=padded_lanes(most),
        num_warps=4,
    )
    return whole


@jit(do_not_specialize=["num_rows"])
def _settle_kernel(gathered, token_ids, last_ids, num_rows, num_ranks: tl.constexpr):
    """The highest of all ranks' tokens and, if there are any, the lowest of their last ids."""
    i = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    inside = i < num_rows
    width: tl.constexpr = 1 if last_ids is None else 2
    token = tl.full((_ROWS,), -1, tl.int32)
    last = tl.full((_ROWS,), 2147483647, tl.int32)
    for rank in tl.static_range(num_ranks):
        at = gathered + rank * width * num_rows + i
        token = tl.maximum(token, tl.load(at, mask=inside, other=-1))
        if last_ids is not None:
            last = tl.minimum(last, tl.load(at + num_rows, mask=inside, other=2147483647))
    tl.store(token_ids + i, token, mask=inside)
    if last_ids is not None:
        tl.store(last_ids + i, last, mask=inside)


def settle(token_ids: Tensor, cuts: Cut | None, shard: VocabShard) -> None:
    """Let every rank know, in place, what the rank that holds it found.

    Args:
        token_ids: int32 [n], drawn tokens; -1 on the ranks that do not hold them.
        cuts: their last ids, which are right for a rank's own ids, become right for all.
    """
    own = token_ids[None] if cuts is None else torch.stack((token_ids, cuts.last_ids))
    gathered = shard.exchange.all_gather(own)
    num_rows = len(token_ids)
    _settle_kernel[(triton.cdiv(num_rows, NUM_ROWS),)](
        gathered,
        token_ids,
        None if cuts is None else cuts.last_ids,
        num_rows,
        num_ranks=len(gathered),
        num_warps=1,
    )
