"""The native path on CUDA: a few kernels that never wait for the host, so a graph can hold them."""

from __future__ import annotations

from torch import Tensor

from sampling.batch import LogprobsOutput, SamplerOutput, SamplingBatch
from sampling.filters.bisection import bisect
from sampling.filters.bracket import bracket
from sampling.filters.cut import cut_within
from sampling.filters.shortlist import shortlist
from sampling.kernels.logits import Source
from sampling.kernels.logprobs import gather_logprobs
from sampling.kernels.penalties import count_tokens
from sampling.kernels.race import pick
from sampling.kernels.shard_race import candidates, decide
from sampling.kernels.tile_pass import TileStats, tile_pass_for
from sampling.paths.flashinfer import FlashInfer
from sampling.race import Cut
from sampling.rows import FLASHINFER, SamplingNeeds, SamplingRows

# Turns of bracket, scan and cut: one decides almost every row, the next what its sample misjudged.
TURNS = 2


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
    if not rows.shard.is_whole and reported_ids is None and is_divided(batch.needs):
        return _draw_divided(logits, batch, rows)
    logits = rows.shard.whole_rows(logits)
    needs, edited = batch.needs, batch.needs.edited
    elsewhere = 0 if flashinfer is None else FLASHINFER
    source = Source.of(logits, batch, rows)
    stats = tile_pass_for(source, needs)
    cuts = cut(source, stats, needs, elsewhere) if needs.filtered else None
    picked = pick(
        source,
        stats,
        cuts,
        edited=edited,
        reported=needs.logprobs,
        kept=needs.kept,
        elsewhere=elsewhere,
    )
    if flashinfer is not None:
        flashinfer.redraw(source, stats, batch, rows, picked, edited=edited)
    logprobs = None
    if needs.logprobs:
        reported_ids = picked.token_ids if reported_ids is None else reported_ids
        logprobs = report(
            source, stats, cuts, picked.offsets, picked.kept, reported_ids, batch, rows
        )
    if needs.penalized:  # after logprobs, which report what the token was drawn from
        count_tokens(source, picked.token_ids, picked.bad)
    return SamplerOutput(picked.token_ids, picked.bad, logprobs)


def is_divided(needs: SamplingNeeds) -> bool:
    """Whether ranks draw for such needs each from its part of the logits, none gathering rows."""
    return not (needs.filtered or needs.logprobs)


def _draw_divided(logits: Tensor, batch: SamplingBatch, rows: SamplingRows) -> SamplerOutput:
    """Draw for `is_divided` needs: each rank from its own tiles, and all decide alike."""
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
    )


def cut(source: Source, stats: TileStats, needs: SamplingNeeds, elsewhere: int = 0) -> Cut:
    """Find where the filters cut; each stage does the rows that those before left undecided."""
    edited = needs.edited
    cuts, scratch = shortlist(source, stats, edited=edited, elsewhere=elsewhere)
    brackets = None
    for turn in range(TURNS + needs.twice_filtered):
        brackets = bracket(source, stats, cuts, scratch, brackets, turn=turn, edited=edited)
        cut_within(source, stats, cuts, scratch, brackets, edited=edited)
    bisect(source, stats, cuts, scratch, edited=edited)
    return cuts
