"""The native path on CUDA: a few kernels, no host synchronisation, capturable in a graph."""

from __future__ import annotations

from torch import Tensor

from sampling.batch import Drawn, SamplingBatch
from sampling.bracket_kernels import bracket
from sampling.filter_kernels import head
from sampling.logit_kernels import Source
from sampling.logprob_kernels import MAX_TOP, gather_logprobs
from sampling.logprobs import LogprobsOutput
from sampling.race_kernels import Cuts, TileStats, pick, tile_pass
from sampling.rows import SamplingNeeds, SamplingRows
from sampling.scan_kernels import cut_within
from sampling.search_kernels import search


def draw(logits: Tensor, batch: SamplingBatch, rows: SamplingRows) -> Drawn:
    """As `torch_path.draw`; extra memory is O(n * tiles)."""
    needs = batch.needs
    source = Source.of(logits, batch, rows)
    stats = tile_pass(source, edited=needs.edited, peaked=needs.filtered, reported=needs.logprobs)
    cuts = None
    if needs.filtered:
        cuts = _cut(source, stats, needs)
    picked = pick(source, stats, cuts, edited=needs.edited, reported=needs.logprobs)
    if not needs.logprobs:
        return Drawn(picked.token_ids, picked.bad, None, None)
    if needs.num_top > MAX_TOP:  # more than the kernels keep: raw values, through torch
        return Drawn(picked.token_ids, picked.bad, None, picked.offsets)
    reported = gather_logprobs(
        source,
        stats,
        cuts,
        picked.offsets,
        picked.token_ids,
        num_top=needs.num_top,
        explicit_ids=rows.explicit_ids[batch.rows, : needs.num_explicit],
        edited=needs.edited,
    )
    return Drawn(picked.token_ids, picked.bad, None, None, LogprobsOutput(*reported))


def _cut(source: Source, stats: TileStats, needs: SamplingNeeds) -> Cuts:
    """Where the filters cut; each stage does the rows the one before left undecided."""
    edited = needs.edited
    cuts, scratch = head(source, stats, edited=edited)
    for second in range(2 if needs.twice_filtered else 1):
        brackets = bracket(source, stats, cuts, scratch, edited=edited, second=bool(second))
        cut_within(source, stats, cuts, scratch, brackets, edited=edited, second=bool(second))
    search(source, stats, cuts, scratch, edited=edited)
    return cuts
