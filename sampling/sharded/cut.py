"""Finds where the filters cut a vocabulary that ranks divide: one rank's stages, and exchanges."""

from __future__ import annotations

from sampling.filters.bisection import bisect
from sampling.filters.bracket import bracket
from sampling.filters.cut import TURNS, cut_within
from sampling.filters.shortlist import shortlist
from sampling.kernels.logits import Source
from sampling.kernels.tile_pass import TileStats
from sampling.race import Cut
from sampling.rows import SamplingNeeds
from sampling.sharded.scan import gather_scan
from sampling.sharded.stages import decide_shortlist, gather_samples, gather_undecided
from sampling.vocab_shard import VocabShard


def cut_sharded(
    source: Source, stats: TileStats, needs: SamplingNeeds, shard: VocabShard, elsewhere: int
) -> Cut:
    """Find the cuts that `triton_path.cut` finds on one rank, the same on every rank.

    Args:
        source: of the shard. stats: of all tiles.
        elsewhere: FLAGS bits of the rows that another sampler filters.
    """
    edited = needs.edited
    cuts, scratch = shortlist(source, stats, edited=edited, elsewhere=elsewhere, divided=True)
    decide_shortlist(source, stats, cuts, scratch, shard)
    brackets = None
    for turn in range(TURNS + needs.twice_filtered):
        samples = gather_samples(source, scratch, shard, turn=turn, edited=edited)
        brackets = bracket(
            source, stats, cuts, scratch, brackets, turn=turn, edited=edited, samples=samples
        )
        found = gather_scan(source, stats, scratch, brackets, shard, edited=edited)
        cut_within(source, stats, cuts, scratch, brackets, found, edited=edited)
        del found  # the next turn's takes its room
    bisect(gather_undecided(source, scratch, shard), stats, cuts, scratch, edited=edited)
    return cuts
