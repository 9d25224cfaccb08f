# mypy: allow-untyped-defs, allow-incomplete-defs
"""Min-p, top-k and top-p in Triton without sorting the vocabulary: rows the head left over.

The wanted cut is the highest value v such that the measure of the tokens at or above v, a count
for top-k and a mass for top-p, reaches a target. Here a sample of the row brackets v;
`scan_kernels` then finds it with one more pass over the logits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sampling.filter_kernels import (
    LAST_ID,
    LOG_MIN_P,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Scratch,
    order,
)
from sampling.logit_kernels import NUM_FLOATS, NUM_INTS, Source, load_raw, processed
from sampling.race import MASS_ERROR
from sampling.race_kernels import Cuts
from sampling.tile_kernels import TileStats, scale_of
from sampling.triton_support import constexpr, jit, tl, triton

SAMPLED = 8192  # tokens of a row looked at to place the bracket

_SAMPLED, _MASS_ERROR = constexpr(SAMPLED), constexpr(MASS_ERROR)
LOWEST_ORDER = constexpr(-2139095040)  # of the lowest finite float32
_SPREAD = constexpr(5.0)  # standard deviations between the sample's estimate and the bracket


class Brackets(NamedTuple):
    """Where each row's cut lies, as `order`s, and what may be kept at all."""

    low: Tensor  # int32 [n]
    high: Tensor  # int32 [n]; below `low` where everything down to the limit is kept
    limit: Tensor  # int32 [n], nothing lower is kept
    limit_id: Tensor  # int32 [n], of the tokens equal to the limit the last one kept


class Row(NamedTuple):
    """Scalars of a row and its bracket."""

    by_mass: Any
    low: Any
    high: Any
    limit: Any
    limit_id: Any
    temperature: Any
    top_k: Any
    top_p: Any


@jit
def load_row(source, brackets, i, second: tl.constexpr):
    row = tl.load(source.rows + i).to(tl.int64)
    floats = source.floats + row * NUM_FLOATS
    top_k = tl.load(source.ints + row * NUM_INTS + TOP_K)
    return Row(
        (top_k == 0) | second,
        tl.load(brackets.low + i),
        tl.load(brackets.high + i),
        tl.load(brackets.limit + i),
        tl.load(brackets.limit_id + i),
        tl.load(floats + TEMPERATURE),
        top_k,
        tl.load(floats + TOP_P),
    )


@jit
def under_min_p(row, second: tl.constexpr):
    """Whether the mass of what the limit allows must be measured."""
    return (row.limit > LOWEST_ORDER) & (second == 0)


@jit
def floor_order(top, temperature, log_min_p):
    """The order of the lowest finite float32 that min-p keeps."""
    floor = top + temperature * log_min_p
    nearest = floor.to(tl.float32)
    lowest = order(nearest) + (nearest.to(tl.float64) < floor).to(tl.int32)
    return tl.maximum(lowest, LOWEST_ORDER)


@jit
def row_top(stats, i, num_tiles, padded_tiles: tl.constexpr):
    """The row's maximum."""
    tiles = tl.arange(0, padded_tiles)
    at = i * num_tiles + tiles
    return tl.max(tl.load(stats.maxima + at, mask=tiles < num_tiles, other=float("-inf")), 0)


@jit
def _bracket_kernel(
    source,
    stats,
    cuts,
    scratch,
    brackets,
    num_tiles,
    padded_tiles: tl.constexpr,
    complete: tl.constexpr,
    edited: tl.constexpr,
    second: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    if tl.load(scratch.undecided + i) != second + 1:
        return
    row = tl.load(source.rows + i).to(tl.int64)
    floats = source.floats + row * NUM_FLOATS
    temperature, top_p = tl.load(floats + TEMPERATURE), tl.load(floats + TOP_P)
    top_k = tl.load(source.ints + row * NUM_INTS + TOP_K)
    top = row_top(stats, i, num_tiles, padded_tiles)
    limit = floor_order(top, temperature, tl.load(floats + LOG_MIN_P))
    limit_id = tl.full((), 0, tl.int32) + LAST_ID
    if second:
        limit = order(tl.load(cuts.thresholds + i))
        limit_id = tl.load(cuts.last_ids + i)
    by_mass = (top_k == 0) | second
    low, high = limit, limit - 1
    if (top_p < 1.0) | (by_mass == 0):
        low, high = _bracket(
            source, stats, i, by_mass, top_k, top_p, limit, top, temperature, num_tiles,
            padded_tiles, complete, edited, second,
        )  # fmt: skip
        low = tl.maximum(low, limit)
        high = tl.maximum(tl.minimum(high, order(top)), low)
    tl.store(brackets.low + i, low)
    tl.store(brackets.high + i, high)
    tl.store(brackets.limit + i, limit)
    tl.store(brackets.limit_id + i, limit_id)


@jit
def _sample(source, i, num_tiles, complete: tl.constexpr, edited: tl.constexpr):
    """Processed logits of `SAMPLED` tokens, eight neighbours at a time all over the row."""
    slot = tl.arange(0, _SAMPLED)
    token_ids = slot
    if not complete:
        token_ids = slot // 8 * (source.vocab_size // 8) // (_SAMPLED // 8) * 8 + slot % 8
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        values = processed(values, token_ids, source, i, 0, num_tiles)
    return values


@jit
def _bracket(
    source,
    stats,
    i,
    by_mass,
    top_k,
    top_p,
    limit,
    top,
    temperature,
    num_tiles,
    padded_tiles: tl.constexpr,
    complete: tl.constexpr,
    edited: tl.constexpr,
    second: tl.constexpr,
):
    """Two orders between which the cut probably lies.

    The variance of a sum of weights sampled at a low rate is the sum of their squares. By mass,
    the sum is of what lies below the cut, since light tokens make a steady estimate; by count, of
    what lies at and above it. How far the sample may be off is judged at its own cut.
    """
    values = _sample(source, i, num_tiles, complete, edited)
    scale = scale_of(temperature)
    inside = order(values) >= limit
    weights = tl.where(by_mass, tl.exp2((values - top) * scale), 1.0)
    rate = 1.0
    if not complete:
        rate = 1.0 * _SAMPLED / source.vocab_size
    mass = _row_mass(stats, i, top, temperature, num_tiles, padded_tiles).to(tl.float32) * rate
    if not second:  # what the limit forbids is in the masses still
        mass -= tl.sum(tl.where(inside, 0.0, weights), 0)
    wanted = tl.where(by_mass, (1.0 - top_p).to(tl.float32) * mass, top_k.to(tl.float32) * rate)
    weights = tl.where(inside, weights, 0.0)
    below = tl.where(by_mass, wanted, tl.sum(weights, 0) - wanted)
    bottom = tl.min(tl.where(inside, values, top), 0)
    value = _own_cut(values, weights, below, bottom, top)
    spread = tl.where(by_mass, below, wanted) * _MASS_ERROR
    if not complete:
        squares = tl.sum(tl.where(values < value, weights * weights, 0.0), 0)
        weight = tl.where(by_mass, tl.exp2((value - top) * scale), 1.0)
        spread = _SPREAD * tl.sqrt(tl.where(by_mass, squares, wanted)) + 3.0 * weight
    spread += tl.where(by_mass, 0.0, 0.5)
    return _widened(values, weights, value, below - spread, below + spread, bottom, top)


@jit
def _own_cut(values, weights, below, bottom, top):
    """The sample's cut: where `below` of its weight lies below it, nearly."""
    low, high = bottom, top
    for _ in range(10):
        value = low + 0.5 * (high - low)
        under = tl.sum(tl.where(values < value, weights, 0.0), 0) <= below
        low, high = tl.where(under, value, low), tl.where(under, high, value)
    return low


@jit
def _widened(values, weights, value, least, most, bottom, top):
    """Orders of two values, one with at most `least` of the weight below it, one with at least
    `most`, or the ends; not much further from `value` than they must be."""
    step = tl.maximum((top - bottom) / 512.0, 1.0e-30)
    low, high = value, value
    low_step, high_step = step, step
    under, over = step < 0.0, step < 0.0
    while ((low > bottom) & (under == 0)) | ((high < top) & (over == 0)):
        step *= 2.0
        low_step, high_step = tl.where(under, low_step, step), tl.where(over, high_step, step)
        low, high = tl.maximum(value - low_step, bottom), tl.minimum(value + high_step, top)
        under = tl.sum(tl.where(values < low, weights, 0.0), 0) <= least
        over = tl.sum(tl.where(values < high, weights, 0.0), 0) >= most
    for _ in tl.static_range(2):  # the last steps may have been too long by half
        low_step, high_step = 0.5 * low_step, 0.5 * high_step
        higher, lower = low + 0.5 * low_step, high - 0.5 * high_step
        under = tl.sum(tl.where(values < higher, weights, 0.0), 0) <= least
        over = tl.sum(tl.where(values < lower, weights, 0.0), 0) >= most
        low, high = tl.where(under, higher, low), tl.where(over, lower, high)
    return order(low), order(high)


@jit
def _row_mass(stats, i, top, temperature, num_tiles, padded_tiles: tl.constexpr):
    """Sum of the masses relative to the row's maximum, float64."""
    tiles = tl.arange(0, padded_tiles)
    at = i * num_tiles + tiles
    maxima = tl.load(stats.maxima + at, mask=tiles < num_tiles, other=float("-inf"))
    masses = tl.load(stats.masses + at, mask=tiles < num_tiles, other=0.0)
    return tl.sum(masses * tl.exp((maxima - top).to(tl.float64) / temperature), 0)


def bracket(
    source: Source,
    stats: TileStats,
    cuts: Cuts,
    scratch: Scratch,
    *,
    edited: bool,
    second: bool,
) -> Brackets:
    """Bracket the cuts of undecided rows; other rows' brackets are left undefined.

    Args:
        source, stats, cuts, scratch: as `head` took and gave them.
        edited: as for `tile_pass`.
        second: bracket the top-p of the rows whose top-k a first bracket has cut.
    """
    num_rows, num_tiles = stats.maxima.shape
    like = scratch.undecided
    brackets = Brackets(*(torch.empty_like(like) for _ in Brackets._fields))
    _bracket_kernel[(num_rows,)](
        source,
        stats,
        cuts,
        scratch,
        brackets,
        num_tiles,
        padded_tiles=max(2, triton.next_power_of_2(num_tiles)),
        complete=source.vocab_size <= SAMPLED,
        edited=edited,
        second=second,
        num_warps=8,
        maxnreg=128,  # two programs a multiprocessor
        enable_fp_fusion=False,
    )
    return brackets
