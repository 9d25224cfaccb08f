"""Verification on CUDA: one tile pass over all positions, a verdict a draft, one draw a row.

Only rows with a refused draft get a residual, for one position each. Nothing waits for the host.
"""

from __future__ import annotations

from torch import Tensor

from sampling.batch import Drafts, SamplingBatch, Verification
from sampling.kernels.penalties import count_tokens
from sampling.paths.triton_path import cut, measure, report
from sampling.rows import SamplingRows
from sampling.sharded.tiles import for_kernels
from sampling.speculative.blocks import decide_blocks
from sampling.speculative.residual import draw_last_tokens
from sampling.speculative.verdict import decide


def verify(
    logits: Tensor,
    batch: SamplingBatch,
    rows: SamplingRows,
    drafts: Drafts,
    method: str,
    rates: Tensor | None,
) -> Verification:
    """Verify a step's drafts; arguments as for `verification.verify`.

    Args:
        method: "standard" and "block" have draft logits.
    """
    needs, edited = batch.needs, batch.needs.edited
    logits, shard = for_kernels(logits, rows.shard)
    coupled = method == "coupled"
    source, stats = measure(logits, batch, rows, shard)
    cuts = cut(source, stats, needs, shard) if needs.filtered else None
    if cuts is not None and needs.logprobs:  # top lists hold ids of all ranks
        cuts = cuts._replace(last_ids=-shard.highest(-cuts.last_ids))
    has_draft_logits = drafts.logits is not None and needs.random and not coupled
    together = method == "block" and has_draft_logits
    verdicts, draft = decide(
        source,
        stats,
        cuts,
        drafts,
        rates,
        coupled=coupled,
        has_draft_logits=has_draft_logits,
        edited=edited,
        reported=needs.logprobs,
        kept=needs.kept,
        together=together,
        shard=shard,
    )
    masses = None
    if together and draft is not None:
        masses = decide_blocks(source, cuts, verdicts, draft, shard, edited=edited)
    tokens = draw_last_tokens(
        source, stats, cuts, verdicts, draft, shard, edited=edited, block_masses=masses
    )
    logprobs = None
    if needs.logprobs:
        logprobs = report(
            source, stats, cuts, verdicts.offsets, verdicts.kept, tokens.chosen, batch, rows, shard
        )
    if needs.penalized:  # after logprobs, which report what the tokens were drawn from
        count_tokens(source, tokens.chosen, tokens.chosen < 0)
    return Verification(*tokens[:4], logprobs)
