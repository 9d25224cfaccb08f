# mypy: allow-untyped-defs, allow-incomplete-defs
"""Min-p, top-k and top-p in Triton without sorting the vocabulary: what the turns know of a row.

The wanted cut is the highest value v such that the measure of the tokens at or above v, a count
for top-k and a mass for top-p, reaches a target. A turn looks for it so: `bracket_kernels` brackets
v by a sample of the row, `scan_kernels` measures what lies above the bracket and notes what lies
inside, `cut_kernels` finds v there. Where the sample misled, the measures prove it, and they are
exact: the next turn has only what lies between them to look at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from sampling.filters.shortlist import LAST_ID, TEMPERATURE, TOP_K, TOP_P
from sampling.kernels.logits import NUM_FLOATS, NUM_INTS
from sampling.kernels.order import order
from sampling.triton_support import constexpr, jit, tl

NOTED = 8192  # room for the values inside a row's bracket

LOWEST_ORDER = constexpr(-2139095040)  # of the lowest finite float32

# What `Scratch.undecided` says of a row: 0 it is cut, otherwise one of the first two, which tell
# what is cut next, plus AGAIN where a turn has looked for that cut in vain.
FIRST, SECOND = constexpr(1), constexpr(2)  # a top-k, or a lone top-p; the top-p after a top-k
AGAIN = constexpr(2)


class Brackets(NamedTuple):
    """Where each row's cut lies, as `order`s, and what may be kept at all."""

    low: Tensor  # int32 [n]
    high: Tensor  # int32 [n]; below `low` where everything down to the limit is kept
    tied: Tensor  # int32 [n], 1: values equal to low or high are many, and counted, not noted
    limit: Tensor  # int32 [n], nothing lower is kept
    limit_id: Tensor  # int32 [n], of the tokens equal to the limit the last one kept
    floor: Tensor  # int32 [n], the cut is proved not to be lower
    ceiling: Tensor  # int32 [n], or higher
    from_above: Tensor  # int32 [n], how `left` counts
    num_noted: Tensor  # int32 [n], counted up by the scan
    left: Tensor  # float64 [n], measure between the cut and the ceiling (1) or the floor (0)


class Row(NamedTuple):
    """Scalars of a row and its bracket."""

    by_mass: Any
    second: Any
    low: Any
    high: Any
    tied: Any
    limit: Any
    limit_id: Any
    temperature: Any
    top_k: Any
    top_p: Any


class Wanted(NamedTuple):
    """Scalars of a row whose cut is looked for."""

    by_mass: Any
    limit: Any
    limit_id: Any
    floor: Any
    ceiling: Any
    from_above: Any
    left: Any


@jit
def load_row(source, brackets, i, state):
    row = tl.load(source.rows + i).to(tl.int64)
    floats = source.floats + row * NUM_FLOATS
    top_k = tl.load(source.ints + row * NUM_INTS + TOP_K)
    second = state % 2 == 0
    return Row(
        (top_k == 0) | second,
        second,
        tl.load(brackets.low + i),
        tl.load(brackets.high + i),
        tl.load(brackets.tied + i),
        tl.load(brackets.limit + i),
        tl.load(brackets.limit_id + i),
        tl.load(floats + TEMPERATURE),
        top_k,
        tl.load(floats + TOP_P),
    )


@jit
def first_inside(row):
    """The lowest order that is noted; above `last_inside` if none is."""
    return tl.where(row.tied != 0, higher(row.low), row.low)


@jit
def last_inside(row):
    """The highest order that is noted."""
    return tl.where(row.tied != 0, lower(row.high), row.high)


@jit
def under_min_p(row):
    """Whether the mass of what the limit allows must be measured."""
    return (row.limit > LOWEST_ORDER) & (row.second == 0)


@jit
def higher(orders):
    """The next order; there is none for a negative zero."""
    return orders + tl.where(orders == -2, 2, 1)


@jit
def lower(orders):
    """The order before."""
    return orders - tl.where(orders == 0, 2, 1)


@jit
def floor_order(top, temperature, log_min_p):
    """The order of the lowest finite float32 that min-p keeps."""
    floor = top + temperature * log_min_p
    nearest = floor.to(tl.float32)
    lowest = order(nearest)
    lowest = tl.where(nearest.to(tl.float64) < floor, higher(lowest), lowest)
    return tl.maximum(lowest, LOWEST_ORDER)


@jit
def row_top(stats, i, num_tiles, padded_tiles: tl.constexpr):
    """The row's maximum."""
    tiles = tl.arange(0, padded_tiles)
    at = i * num_tiles + tiles
    return tl.max(tl.load(stats.maxima + at, mask=tiles < num_tiles, other=float("-inf")), 0)


@jit
def reopened(brackets, i, by_mass):
    """What the last turn has proved."""
    return Wanted(
        by_mass,
        tl.load(brackets.limit + i),
        tl.load(brackets.limit_id + i),
        tl.load(brackets.floor + i),
        tl.load(brackets.ceiling + i),
        tl.load(brackets.from_above + i) != 0,
        tl.load(brackets.left + i),
    )


@jit
def opened(
    source,
    stats,
    cuts,
    i,
    state,
    lowest,
    top,
    temperature,
    top_k,
    top_p,
    num_tiles,
    padded_tiles: tl.constexpr,
):
    """What is known before the first turn.

    All tokens lower than T ln(V / (1 - p)) below the top have a mass of less than 1 - p together,
    so the cut is not among them, nor much mass five times T lower.
    """
    by_mass = (top_k == 0) | (state == SECOND)
    limit, limit_id = lowest, tl.full((), 0, tl.int32) + LAST_ID
    if state == SECOND:
        limit, limit_id = order(tl.load(cuts.thresholds + i)), tl.load(cuts.last_ids + i)
    floor, left = limit, top_k.to(tl.float64)
    if by_mass & (top_p < 1.0):
        depth = tl.log(source.vocab_size / (1.0 - top_p)) + 5.0
        floor = tl.maximum(limit, order((top - temperature * depth).to(tl.float32)))
        left = (1.0 - top_p) * _row_mass(stats, i, top, temperature, num_tiles, padded_tiles)
    return Wanted(by_mass, limit, limit_id, floor, order(top), by_mass == 0, left)


@jit
def _row_mass(stats, i, top, temperature, num_tiles, padded_tiles: tl.constexpr):
    """Sum of the masses relative to the row's maximum, float64."""
    tiles = tl.arange(0, padded_tiles)
    at = i * num_tiles + tiles
    maxima = tl.load(stats.maxima + at, mask=tiles < num_tiles, other=float("-inf"))
    masses = tl.load(stats.masses + at, mask=tiles < num_tiles, other=0.0)
    return tl.sum(masses * tl.exp((maxima - top).to(tl.float64) / temperature), 0)
