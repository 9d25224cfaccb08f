"""The native path on CUDA: a few kernels that never wait for the host, so a graph can hold them."""

from __future__ import annotations

from torch import Tensor

from sampling.batch import LogprobsOutput, SamplerOutput, SamplingBatch
from sampling.filters.bisection import bisect
from sampling.filters.bracket import bracket
from sampling.filters.cut import cut_within
from sampling.filters.divided import (
    decide_shortlist,
    gather_samples,
    gather_undecided,
)
from sampling.filters.divided_scan import gather_scan
from sampling.filters.scan import scan
from sampling.filters.shortlist import shortlist
from sampling.kernels.logits import Source
from sampling.kernels.logprobs import gather_logprobs
from sampling.kernels.penalties import count_tokens
from sampling.kernels.race import pick
from sampling.kernels.shard_race import candidates, decide
from sampling.kernels.shard_tiles import settle, whole_tiles
from sampling.kernels.tile_pass import TileStats, tile_pass_for
from sampling.paths.flashinfer import FlashInfer
from sampling.race import Cut
from sampling.rows import FLASHINFER, SamplingNeeds, SamplingRows
from sampling.shard import VocabShard

# Turns of bracket, scan and cut: one decides almost every row, the next what its sample misjudged.
TURNS = 2
ALIGNED = 16  # numbers: Triton compiles strides that this divides apart from others


def draw(
    logits: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
    flashinfer: FlashInfer | None = None,
    *,
    reported_ids: Tensor | None = None,
) -> SamplerOutput:
    """Draw one token a logit row, as `torch_path.draw` does, in O(n * tiles) of extra memory.

    Args:
        logits, batch, rows, reported_ids: as for `torch_path.draw`. Of several ranks, all but
            `is_divided` needs gather the logits' rows.
        flashinfer: draws the rows marked `FLASHINFER`, which makes the call look at the host and
            takes a copy of their logits.
    """
    needs, edited = batch.needs, batch.needs.edited
    if not rows.shard.is_whole and not (needs.filtered or needs.logprobs):
        return _draw_alone(logits, batch, rows)
    logits, shard = to_divide(logits, rows.shard)
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
            source, stats, cuts, picked.offsets, picked.kept, reported_ids, batch, rows, shard
        )
    if needs.penalized:  # after logprobs, which report what the token was drawn from
        count_tokens(source, picked.token_ids, picked.bad)
    return SamplerOutput(picked.token_ids, picked.bad, logprobs)


def to_divide(logits: Tensor, shard: VocabShard) -> tuple[Tensor, VocabShard]:
    """The logits that a rank's kernels read, and whose ids they are: those of `dividing`."""
    read = dividing(shard)
    return (logits if read is shard else shard.whole_rows(logits)), read


def dividing(shard: VocabShard) -> VocabShard:
    """The ids whose logits a rank's kernels read: the shard's, or all where rows are gathered.

    Kernels add up a tile in the order in which threads have loaded it, which is another where 16
    divides the stride of rows than where it does not. The strides of the whole vocabulary and of
    its shards are alike in this only if 16 divides the vocabulary. Where it does not, a cut could
    differ from one rank's by a last bit of a mass: whole rows are gathered there.
    """
    if shard.is_whole or shard.vocab_size % ALIGNED == 0:
        return shard
    return VocabShard.whole(shard.vocab_size)


def measure(
    logits: Tensor, batch: SamplingBatch, rows: SamplingRows, shard: VocabShard
) -> tuple[Source, TileStats]:
    """The source of a shard's logits, and the statistics of the tiles of all ranks."""
    if shard.is_whole:
        source = Source.of(logits, batch, rows)
        return source, tile_pass_for(source, batch.needs)
    source = Source.of(logits, batch, rows, shard)
    return source, whole_tiles(source, batch.needs, shard)


def _draw_alone(logits: Tensor, batch: SamplingBatch, rows: SamplingRows) -> SamplerOutput:
    """Draw without filters and logprobs: each rank from its own tiles, and all decide alike."""
    source, edited = Source.of(logits, batch, rows, rows.shard), batch.needs.edited
    stats = tile_pass_for(source, batch.needs)
    own = candidates(source, stats, edited=edited)
    token_ids, bad = decide(source, rows.shard.exchange.all_gather(own))
    if batch.needs.penalized:
        count_tokens(source, token_ids, bad)
    return SamplerOutput(token_ids, bad, None)


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
) -> LogprobsOutput:
    """The logprobs of the tokens int32 [n], each row in its mode.

    `offsets` and `kept` are as in `Picked`.
    """
    needs = batch.needs
    return gather_logprobs(
        source,
        stats,
        cuts,
        offsets,
        kept,
        token_ids,
        num_top=needs.num_top,
        explicit_ids=rows.explicit_ids[batch.rows, : needs.num_explicit],
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
    edited, divided = needs.edited, not shard.is_whole
    cuts, scratch = shortlist(source, stats, edited=edited, elsewhere=elsewhere, divided=divided)
    if divided:
        decide_shortlist(source, stats, cuts, scratch, shard)
    brackets, samples = None, None
    for turn in range(TURNS + needs.twice_filtered):
        if divided:
            samples = gather_samples(source, scratch, shard, turn=turn, edited=edited)
        brackets = bracket(
            source, stats, cuts, scratch, brackets, turn=turn, edited=edited, samples=samples
        )
        if divided:
            found = gather_scan(source, stats, scratch, brackets, shard, edited=edited)
        else:
            found = scan(source, stats, scratch, brackets, edited=edited)
        cut_within(source, stats, cuts, scratch, brackets, found, edited=edited)
        del found  # the next turn's takes its room
    whole = gather_undecided(source, scratch, shard) if divided else source
    bisect(whole, stats, cuts, scratch, edited=edited)
    return cuts
