"""The native path on CUDA: a few kernels that never wait for the host, so a graph can hold them."""

from __future__ import annotations

from torch import Tensor

from sampling.batch import LogprobsOutput, SamplerOutput, SamplingBatch
from sampling.filters.bisection import bisect
from sampling.filters.bracket import bracket
from sampling.filters.cut import TURNS, cut_within
from sampling.filters.scan import scan
from sampling.filters.shortlist import shortlist
from sampling.kernels.logits import Source
from sampling.kernels.logprobs import gather_logprobs
from sampling.kernels.penalties import count_tokens
from sampling.kernels.race import pick
from sampling.kernels.tile_pass import TileStats, tile_pass_for
from sampling.paths.flashinfer import FlashInfer
from sampling.race import Cut
from sampling.rows import FLASHINFER, SamplingNeeds, SamplingRows
from sampling.sharded.cut import cut_sharded
from sampling.sharded.race import draw_sharded
from sampling.sharded.tiles import for_kernels, settle, whole_tiles
from sampling.vocab_shard import VocabShard


def draw(
    logits: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
    flashinfer: FlashInfer | None = None,
    *,
    reported_ids: Tensor | None = None,
    explicit_ids: Tensor | None = None,
) -> SamplerOutput:
    """Draw one token a logit row, as `torch_path.draw` does, in O(n * tiles) of extra memory.

    Args:
        logits, batch, rows, reported_ids, explicit_ids: as for `torch_path.draw`.
        flashinfer: draws the rows marked `FLASHINFER`, which makes the call look at the host and
            takes a copy of their logits.
    """
    needs, edited = batch.needs, batch.needs.edited
    if not rows.shard.is_whole and not (needs.filtered or needs.logprobs):
        return draw_sharded(logits, batch, rows)
    logits, shard = for_kernels(logits, rows.shard)
    elsewhere = 0 if flashinfer is None else FLASHINFER
    source, stats = measure(logits, batch, rows, shard)
    cuts = cut(source, stats, needs, shard, elsewhere) if needs.filtered else None
    picked = pick(
        source,
        stats,
        cuts,
        edited=edited,
        reported=needs.logprobs,
        kept=needs.kept,
        elsewhere=elsewhere,
    )
    if not shard.is_whole:
        settle(picked.token_ids, cuts, shard)
    if flashinfer is not None:
        flashinfer.redraw(source, stats, batch, rows, picked, edited=edited)
    logprobs = None
    if needs.logprobs:
        reported_ids = picked.token_ids if reported_ids is None else reported_ids
        logprobs = report(
            source,
            stats,
            cuts,
            picked.offsets,
            picked.kept,
            reported_ids,
            batch,
            rows,
            shard,
            explicit_ids,
        )
    if needs.penalized:  # after logprobs, which report what the token was drawn from
        count_tokens(source, picked.token_ids, picked.bad)
    return SamplerOutput(picked.token_ids, picked.bad, logprobs)


def measure(
    logits: Tensor, batch: SamplingBatch, rows: SamplingRows, shard: VocabShard
) -> tuple[Source, TileStats]:
    """The source of a shard's logits, and the statistics of the tiles of all ranks."""
    if shard.is_whole:
        source = Source.of(logits, batch, rows)
        return source, tile_pass_for(source, batch.needs)
    source = Source.of(logits, batch, rows, shard)
    return source, whole_tiles(source, batch.needs, shard)


def report(
    source: Source,
    stats: TileStats,
    cuts: Cut | None,
    offsets: Tensor,
    kept: Tensor,
    token_ids: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
    shard: VocabShard,
    explicit_ids: Tensor | None = None,
) -> LogprobsOutput:
    """The logprobs of the tokens int32 [n], each row in its mode.

    `offsets` and `kept` are as in `Picked`; `explicit_ids` are reported in place of the rows' own.
    """
    needs = batch.needs
    if explicit_ids is None:
        explicit_ids = rows.explicit_ids[batch.rows, : needs.num_explicit]
    return gather_logprobs(
        source,
        stats,
        cuts,
        offsets,
        kept,
        token_ids,
        num_top=needs.num_top,
        explicit_ids=explicit_ids,
        edited=needs.edited,
        shard=shard,
    )


def cut(
    source: Source,
    stats: TileStats,
    needs: SamplingNeeds,
    shard: VocabShard,
    elsewhere: int = 0,
) -> Cut:
    """Find where the filters cut; each stage does the rows that those before left undecided.

    Args:
        source: of the shard. stats: of all tiles.
        elsewhere: FLAGS bits of the rows that another sampler filters.
    """
    if not shard.is_whole:
        return cut_sharded(source, stats, needs, shard, elsewhere)
    edited = needs.edited
    cuts, scratch = shortlist(source, stats, edited=edited, elsewhere=elsewhere)
    brackets = None
    for turn in range(TURNS + needs.twice_filtered):
        brackets = bracket(source, stats, cuts, scratch, brackets, turn=turn, edited=edited)
        found = scan(source, stats, scratch, brackets, edited=edited)
        cut_within(source, stats, cuts, scratch, brackets, found, edited=edited)
        del found  # the next turn's takes its room
    bisect(source, stats, cuts, scratch, edited=edited)
    return cuts
