# mypy: allow-untyped-defs, allow-incomplete-defs
"""The bracket, first step of a turn: a sample of the row says between which values its cut lies.

`filters.scan` then measures what lies above the bracket and notes the values inside it, and
`filters.cut` finds the cut among them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sampling.device.triton_support import constexpr, jit, padded_lanes, tl
from sampling.filters.cut_state import (
    DECIDED,
    FIRST,
    NOTED,
    Brackets,
    floor_order,
    has_missed,
    higher,
    is_second,
    lower,
    opened,
    reopened,
    row_top,
)
from sampling.filters.shortlist import Scratch
from sampling.kernels.logits import Source, load_raw, processed
from sampling.kernels.order import order, value_of
from sampling.kernels.row_params import load_filters, load_log_min_p, sampling_row
from sampling.kernels.tile_pass import TileStats, scale_of
from sampling.race import MASS_ERROR, Cut

SAMPLED = 4096  # tokens of a row looked at to place the bracket

_SAMPLED, _MASS_ERROR = constexpr(SAMPLED), constexpr(MASS_ERROR)
_GROUP, _PILOTS = constexpr(8), constexpr(SAMPLED // 8)  # a group shares a sector of memory
_GOLDEN = constexpr(40503)  # 2^16 over the golden ratio
# The share of the room that a bracket aims to fill: what it holds varies by a fifth.
_FILLED = constexpr(NOTED * 6 // 10)
_SPREAD = constexpr(3.7)  # standard deviations between the sample's estimate and the bracket
# So many samples may equal the bracket's ends; with more, the row may hold too many to note.
_FEW_EQUAL = constexpr(16)


@jit(do_not_specialize=["turn"])
def _bracket_kernel(
    source,
    stats,
    cuts,
    scratch,
    brackets,
    samples,
    num_tiles,
    turn,
    padded_tiles: tl.constexpr,
    complete: tl.constexpr,
    edited: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    state = tl.load(scratch.states + i)
    if state == DECIDED:
        tl.store(brackets.num_noted + i, -1)
        return
    row = sampling_row(source, i)
    temperature, top_k, top_p = load_filters(source, row)
    top = row_top(stats, i, num_tiles, padded_tiles)
    by_mass = (top_k == 0) | is_second(state)
    if has_missed(state):
        wanted = reopened(brackets, i, by_mass)
    else:
        lowest = floor_order(top, temperature, load_log_min_p(source, row))
        wanted = opened(
            source, stats, cuts, i, state, lowest, top, temperature, top_k, top_p, num_tiles,
            padded_tiles,
        )  # fmt: skip
        tl.store(brackets.limit + i, wanted.limit)
        tl.store(brackets.limit_id + i, wanted.limit_id)
        tl.store(brackets.floor + i, wanted.floor)
        tl.store(brackets.ceiling + i, wanted.ceiling)
    low, high, tied = wanted.limit, lower(wanted.limit), tl.full((), 0, tl.int32)
    if (top_p < 1.0) | (by_mass == 0):
        hidden = tl.where((state == FIRST) & by_mass, 1.0 - top_p, 0.0)
        low, high, tied = _bracket(
            source, samples, i, wanted, hidden, top, temperature, num_tiles, turn, complete, edited
        )
    tl.store(brackets.low + i, low)
    tl.store(brackets.high + i, high)
    tl.store(brackets.tied + i, tied)
    tl.store(brackets.num_noted + i, 0)


@jit
def sample(source, i, num_tiles, turn, complete: tl.constexpr, edited: tl.constexpr):
    """Load the orders of `SAMPLED` tokens, a group from each stretch of the row.

    Each turn looks elsewhere in the stretches.
    """
    slot = tl.arange(0, _SAMPLED)
    token_ids = slot
    if not complete:
        stretch, groups = slot // _GROUP, source.vocab_size // _GROUP
        first, end = stretch * groups // _PILOTS, (stretch + 1) * groups // _PILOTS
        jitter = (stretch + turn * _PILOTS) * _GOLDEN % 65536
        token_ids = (first + (jitter * (end - first) >> 16)) * _GROUP + slot % _GROUP
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        values = processed(values, token_ids, source, i, 0, num_tiles)
    return order(values)


@jit
def _bracket(
    source,
    samples,
    i,
    wanted,
    hidden,
    top,
    temperature,
    num_tiles,
    turn,
    complete: tl.constexpr,
    edited: tl.constexpr,
):
    """Bracket a row's cut: low and high, and whether many values equal them.

    The cut probably lies between the two. One token of each sampled group is a pilot; the
    bracket's ends are pilots, in sorted order some ranks away from the sample's own cut. So the
    bracket cannot hold too many values, and where the logits have few different ones it holds
    only those between its ends.
    """
    if samples is None:
        orders = sample(source, i, num_tiles, turn, complete, edited)
    else:
        orders = tl.load(samples + i * _SAMPLED + tl.arange(0, _SAMPLED))
    scale = scale_of(temperature)
    weights = tl.where(wanted.by_mass, tl.exp2((value_of(orders) - top) * scale), 1.0)
    rate = 1.0
    if not complete:
        rate = 1.0 * _SAMPLED / source.vocab_size
    left = wanted.left * rate
    # The masses still hold what min-p forbids.
    left -= hidden * tl.sum(tl.where(orders < wanted.limit, weights, 0.0), 0)
    left = left.to(tl.float32)
    outside = (orders < wanted.floor) | (orders > wanted.ceiling)
    weights = tl.where(outside, 0.0, weights)
    below = tl.where(wanted.from_above, tl.sum(weights, 0) - left, left)
    pilots = tl.reshape(orders, (_PILOTS, _GROUP))
    # Another place in each group: masks may have a period.
    place = tl.arange(0, _PILOTS) * 5 // _GROUP % _GROUP
    chosen = tl.arange(0, _GROUP)[None, :] == place[:, None]
    pilots = tl.sum(tl.where(chosen, pilots, 0), 1)
    pilots = tl.sort(tl.minimum(tl.maximum(pilots, wanted.floor), wanted.ceiling))
    rank = _own_rank(orders, weights, pilots, below)
    value, after = _pilot(pilots, rank, wanted), _pilot(pilots, rank + 1, wanted)
    region = tl.where(wanted.from_above, orders >= value, orders < after)
    spread = _SPREAD * tl.sqrt(tl.sum(tl.where(region, weights * weights, 0.0), 0))
    if complete:  # only rounding can mislead
        spread = left * _MASS_ERROR + tl.where(wanted.by_mass, 0.0, 0.5)
    weight = tl.where(wanted.by_mass, tl.exp2((value_of(value) - top) * scale), 1.0)
    most = tl.maximum(_FILLED * _SAMPLED // (2 * _GROUP) // source.vocab_size, 1)
    if complete:
        most = _FILLED // (2 * _GROUP)
    steps = spread / tl.maximum(_GROUP * weight, 1.0e-30)
    steps = tl.maximum(tl.minimum(steps, most).to(tl.int32), 1)
    low = _end(orders, weights, pilots, wanted, rank, -steps, -most, below - spread)
    high = _end(orders, weights, pilots, wanted, rank, steps, most, below + spread)
    equal = tl.sum(((orders == low) | (orders == high)).to(tl.int32), 0)
    return low, high, ((low == high) | (equal > _FEW_EQUAL)).to(tl.int32)


@jit
def _pilot(pilots, rank, wanted):
    """The pilot of a rank; beyond the pilots the proved floor or ceiling of the cut."""
    ranks = tl.arange(0, _PILOTS)
    inner = tl.sum(tl.where(ranks == rank, pilots, 0), 0)
    return tl.where(rank < 0, wanted.floor, tl.where(rank < _PILOTS, inner, wanted.ceiling))


@jit
def _own_rank(orders, weights, pilots, below):
    """The rank of the last pilot with at most `below` of the sample's weight below it, or 0."""
    ranks = tl.arange(0, _PILOTS)
    first, last = tl.full((), 0, tl.int32), tl.full((), _PILOTS - 1, tl.int32)
    while first < last:
        middle = (first + last + 1) // 2
        pivot = tl.sum(tl.where(ranks == middle, pilots, 0), 0)
        under = tl.sum(tl.where(orders < pivot, weights, 0.0), 0) <= below
        first, last = tl.where(under, middle, first), tl.where(under, last, middle - 1)
    return first


@jit
def _end(orders, weights, pilots, wanted, rank, steps, most, bound):
    """The bracket's low end (negative `steps`) or high end: the nearest pilot that will do.

    It is `steps` or more ranks from `rank`, at most `most`; the weight below a low end is at most
    `bound`, the weight up to a high end at least `bound`.
    """
    one = tl.where(steps < 0, -1, 1)
    end = _pilot(pilots, rank + steps, wanted)
    short = _is_short(orders, weights, end, one, bound)
    while short & (steps != most) & (rank + steps >= 0) & (rank + steps < _PILOTS):
        steps += one
        end = _pilot(pilots, rank + steps, wanted)
        short = _is_short(orders, weights, end, one, bound)
    return end


@jit
def _is_short(orders, weights, end, one, bound):
    """Whether a pilot is too close to the sample's cut to be the bracket's end, see `_end`."""
    beyond = tl.where(one < 0, end, higher(end))
    under = tl.sum(tl.where(orders < beyond, weights, 0.0), 0)
    return tl.where(one < 0, under > bound, under < bound)


def bracket(
    source: Source,
    stats: TileStats,
    cuts: Cut,
    scratch: Scratch,
    brackets: Brackets | None = None,
    *,
    turn: int,
    edited: bool,
    samples: Tensor | None = None,
) -> Brackets:
    """Bracket the cuts of undecided rows; other rows' brackets are left undefined.

    Args:
        source, stats, cuts, scratch: as `shortlist` took and gave them.
        brackets: of the last turn, None in the first; brought up to date in place.
        turn: how many turns there were before.
        edited: as for `tile_pass`.
        samples: int32 [n, SAMPLED], of all ranks; None takes them from the source's logits.
    """
    num_rows, num_tiles = stats.maxima.shape
    if brackets is None:
        like = scratch.states
        brackets = Brackets._make(
            torch.empty_like(like, dtype=torch.float64 if name == "left" else torch.int32)
            for name in Brackets._fields
        )
    _bracket_kernel[(num_rows,)](
        source,
        stats,
        cuts,
        scratch,
        brackets,
        samples,
        num_tiles,
        turn,
        padded_tiles=padded_lanes(num_tiles),
        complete=source.vocab_size <= SAMPLED,
        edited=edited,
        num_warps=4,
        maxnreg=128,  # four programs a multiprocessor
        enable_fp_fusion=False,
    )
    return brackets
