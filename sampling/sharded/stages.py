# mypy: allow-untyped-defs, allow-incomplete-defs
"""The filters' stages among ranks: each reads its own tiles, and sends what all need to go on.

All ranks know the statistics of all tiles (`sharded.tiles`), so they choose blocks, brackets
and cuts alike, by the kernels of one rank and to the same bit. What a stage reads of logits is
exchanged:

    shortlist   the candidates of a rank's blocks, 8 bytes each
    bracket     its part of the sample, 4 bytes each of 4,096
    scan        7 words of each of its tiles, and the values that it noted, 4 bytes each
                (`sharded.scan`)
    bisection   the logits themselves, of rows that no turn could cut

Rows that are decided send nothing more: on the device it is known which these are.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from sampling.device.triton_support import constexpr, jit, padded_lanes, tl
from sampling.filters.bracket import SAMPLED, sample
from sampling.filters.candidates import LOWEST_KEY, MAX_CANDIDATES, candidates_of
from sampling.filters.cut_state import DECIDED, row_top
from sampling.filters.shortlist import Scratch, decide_among, load_row_filters
from sampling.kernels.logits import Source
from sampling.kernels.order import order
from sampling.kernels.row_params import sampling_row
from sampling.kernels.tile_pass import TileStats
from sampling.race import Cut
from sampling.vocab_shard import VocabShard

GROUP = 8  # sampled together, see `bracket`
UNIT = 16  # words that what is sent is a multiple of, so that all is aligned alike
ROWS = 128  # that a program counts

_ROWS = constexpr(ROWS)
_CANDIDATES, _SAMPLED = constexpr(MAX_CANDIDATES), constexpr(SAMPLED)


class Slots(NamedTuple):
    """The places of a row's sample that ranks can hold: of each the first, and how many at most."""

    firsts: tuple[int, ...]
    width: int


@cache
def sampled_slots(starts: tuple[int, ...]) -> Slots:
    """The `Slots` of ranks whose ids begin at `starts`, the last of which is the vocabulary."""
    vocab_size, stretches = starts[-1], SAMPLED // GROUP
    ranges = []
    for first, end in pairwise(starts):
        if vocab_size > SAMPLED:  # a group of each stretch, wherever in it
            groups = vocab_size // GROUP
            ends = [(each + 1) * groups // stretches * GROUP for each in range(stretches)]
            own = [each for each in range(stretches) if ends[each] > first]
            own = [each for each in own if each == 0 or ends[each - 1] < end]
            ranges.append((own[0] * GROUP, (own[-1] + 1) * GROUP))
        else:
            ranges.append((first, end))
    width = max(end - first for first, end in ranges)
    return Slots(tuple(first for first, _ in ranges), -(-width // UNIT) * UNIT)


@jit(do_not_specialize=["num_rows"])
def _shortlist_kernel(
    source,
    stats,
    cuts,
    scratch,
    keys,
    counts,
    num_rows,
    num_tiles,
    num_ranks: tl.constexpr,
    padded_tiles: tl.constexpr,
):
    """Cut a row among the candidates of all ranks, keys [ranks, n, MAX_CANDIDATES]."""
    i = tl.program_id(0).to(tl.int64)
    if tl.load(scratch.counts + i) < 0:
        return
    slot = tl.arange(0, _CANDIDATES)
    found = tl.full((_CANDIDATES,), LOWEST_KEY, tl.int64)
    found_next = found
    count = tl.full((), 0, tl.int32)
    for rank in tl.static_range(num_ranks):  # ranks ascend by id, as candidates do
        num_own = tl.load(counts + rank * num_rows + i) // 2
        own = slot - count
        at = keys + (rank * num_rows + i) * _CANDIDATES + own
        inside = (own >= 0) & (own < num_own)
        found = tl.where(inside, tl.load(at, mask=inside, other=LOWEST_KEY), found)
        inside = (own + 1 >= 0) & (own + 1 < num_own)
        found_next = tl.where(inside, tl.load(at + 1, mask=inside, other=LOWEST_KEY), found_next)
        count += num_own
    if count > _CANDIDATES:
        return
    top = row_top(stats, i, num_tiles, padded_tiles)
    filters = load_row_filters(source, sampling_row(source, i), top)
    decide_among(
        stats, cuts, scratch, i, candidates_of(found, found_next), count, top, filters,
        tl.load(scratch.masses + i), num_tiles, padded_tiles,
    )  # fmt: skip


def decide_shortlist(
    source: Source, stats: TileStats, cuts: Cut, scratch: Scratch, shard: VocabShard
) -> None:
    """Cut, in place, the rows that few candidates of all ranks decide.

    Args:
        source: of the shard.
        stats: of all tiles.
        cuts, scratch: as `shortlist` gave them, divided.
    """
    assert scratch.counts is not None
    (num_rows, num_tiles), words = stats.maxima.shape, scratch.keys.view(torch.int32)
    gathered = shard.gather_rows(words, scratch.counts, words.shape[1])
    _shortlist_kernel[(num_rows,)](
        source,
        stats,
        cuts,
        scratch,
        gathered.words.view(torch.int64),
        gathered.counts,
        num_rows,
        num_tiles,
        num_ranks=shard.exchange.size,
        padded_tiles=padded_lanes(num_tiles),
        num_warps=4,
        enable_fp_fusion=False,
    )


@jit(do_not_specialize=["turn"])
def _sample_kernel(
    source,
    scratch,
    own,
    counts,
    num_tiles,
    turn,
    first,
    width,
    complete: tl.constexpr,
    edited: tl.constexpr,
):
    """Store an undecided row's sample in the places that this rank can hold."""
    i = tl.program_id(0).to(tl.int64)
    if tl.load(scratch.states + i) == DECIDED:
        tl.store(counts + i, -1)
    else:
        tl.store(counts + i, width)
        orders = sample(source, i, num_tiles, turn, complete, edited)
        slot = tl.arange(0, _SAMPLED) - first
        tl.store(own + i * width + slot, orders, mask=(slot >= 0) & (slot < width))


@jit(do_not_specialize=["num_rows"])
def _merge_samples_kernel(
    gathered, scratch, samples, num_rows, width, firsts: tl.constexpr, num_ranks: tl.constexpr
):
    """Put an undecided row's sample together; a token that is not held was sampled as -inf."""
    i = tl.program_id(0).to(tl.int64)
    if tl.load(scratch.states + i) == DECIDED:
        return
    lane = tl.arange(0, _SAMPLED)
    orders = order(tl.full((_SAMPLED,), float("-inf"), tl.float32))
    for rank in tl.static_range(num_ranks):
        slot = lane - firsts[rank]
        at = gathered + (rank * num_rows + i) * width + slot
        orders = tl.maximum(
            orders, tl.load(at, mask=(slot >= 0) & (slot < width), other=-2147483647)
        )
    tl.store(samples + i * _SAMPLED + lane, orders)


def gather_samples(
    source: Source, scratch: Scratch, shard: VocabShard, *, turn: int, edited: bool
) -> Tensor:
    """The samples of undecided rows, int32 [n, SAMPLED], for `bracket`.

    Args:
        source: of the shard.
        scratch: as the stage before left it.
        turn, edited: as for `bracket`.
    """
    num_rows, device = len(source.rows), source.logits.device
    slots = sampled_slots(shard.starts)
    own = torch.empty((num_rows, slots.width), dtype=torch.int32, device=device)
    counts = torch.empty(num_rows, dtype=torch.int32, device=device)
    samples = torch.empty((num_rows, SAMPLED), dtype=torch.int32, device=device)
    _sample_kernel[(num_rows,)](
        source,
        scratch,
        own,
        counts,
        shard.num_tiles,
        turn,
        slots.firsts[shard.exchange.rank],
        slots.width,
        complete=source.vocab_size <= SAMPLED,
        edited=edited,
        num_warps=4,
        enable_fp_fusion=False,
    )
    _merge_samples_kernel[(num_rows,)](
        shard.gather_rows(own, counts, slots.width).words,
        scratch,
        samples,
        num_rows,
        slots.width,
        firsts=slots.firsts,
        num_ranks=shard.exchange.size,
        num_warps=4,
    )
    return samples


@jit(do_not_specialize=["num_rows", "width"])
def _undecided_kernel(states, counts, num_rows, width):
    """Tell the whole of a row that is undecided, and nothing of others."""
    i = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    state = tl.load(states + i, mask=i < num_rows, other=DECIDED)
    tl.store(counts + i, tl.where(state == DECIDED, -1, width), mask=i < num_rows)


def gather_undecided(source: Source, scratch: Scratch, shard: VocabShard) -> Source:
    """The logits of all ranks, of the rows that are still undecided; others are not defined.

    Args:
        source: of the shard.
        scratch: as the turns left it.
    """
    num_rows, width = len(source.rows), max(shard.widths)
    counts = torch.empty(num_rows, dtype=torch.int32, device=source.logits.device)
    _undecided_kernel[(-(-num_rows // ROWS),)](
        scratch.states, counts, num_rows, shard.width, num_warps=1
    )
    words = source.logits[:, : shard.width].float().view(torch.int32)
    gathered = shard.gather_rows(words, counts, width).words.view(torch.float32)
    return source._replace(
        logits=gathered,
        logits_stride=width,
        part_stride=num_rows * width,
        num_parts=shard.exchange.size,
        first_tile=None,
        end_id=None,
    )
