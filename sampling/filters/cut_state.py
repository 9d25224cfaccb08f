# mypy: allow-untyped-defs, allow-incomplete-defs
"""The state of a row whose cut is not found yet: which cut is wanted, and where it can lie.

The wanted cut is the highest value v such that the measure of the tokens at or above v, a count
for top-k and a mass for top-p, reaches a target. A turn looks for it so: `filters.bracket` brackets
v by a sample of the row, `filters.scan` measures what lies above the bracket and notes what lies
inside, `filters.cut` finds v there. Where the sample misled, the measures prove it, and they are
exact: the next turn has only what lies between them to look at.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from torch import Tensor

from sampling import rows
from sampling.device.triton_support import constexpr, jit, tl
from sampling.kernels.order import order
from sampling.kernels.row_params import NUM_FLOATS, NUM_INTS, TEMPERATURE, sampling_row
from sampling.race import NO_LAST

NOTED = 8192  # room for the values inside a row's bracket

LAST_ID = constexpr(NO_LAST)  # the largest int32: all tokens equal to a cut are kept
LOWEST_ORDER = constexpr(-2139095040)  # of the lowest finite float32
_TOP_K, _TOP_P = constexpr(rows.TOP_K), constexpr(rows.TOP_P)


class CutState(IntEnum):
    """Which cut of a row is looked for next, as `Scratch.states` holds it.

    The shortlist starts a row; the kernel of `filters.cut` moves it on at the end of each turn.
    A row with a top-k and a top-p is cut twice: its top-p is a share of what the top-k left.

        shortlist --decides-------------------------------------> DECIDED
            |
            v
          FIRST --found, no top-p left--------------------------> DECIDED
            | |
            | +---found, a top-p is left--> SECOND --found------> DECIDED
            | missed                          | missed
            v                                 v
        FIRST_AGAIN                      SECOND_AGAIN
        moves on as FIRST does,          moves on as SECOND does,
        stays as it is when missed       stays as it is when missed

    Where all turns are over, `filters.bisection` decides whatever is not DECIDED.
    """

    DECIDED = 0  # the row is cut, or has no filters
    FIRST = 1  # look for the cut of a top-k, of a top-p alone, or of a min-p alone
    SECOND = 2  # look for the cut of the top-p among what the top-k left
    FIRST_AGAIN = 3  # as FIRST, with the bounds proved by a turn that missed the cut
    SECOND_AGAIN = 4


DECIDED = constexpr(int(CutState.DECIDED))
FIRST, SECOND = constexpr(int(CutState.FIRST)), constexpr(int(CutState.SECOND))
AGAIN = constexpr(CutState.FIRST_AGAIN - CutState.FIRST)  # the same step from SECOND


@jit
def is_second(state):
    """Whether a row's second cut is looked for, `SECOND` or `SECOND_AGAIN`."""
    return state % 2 == 0


@jit
def has_missed(state):
    """Whether a turn has looked for the row's present cut and missed it."""
    return state > AGAIN


class Brackets(NamedTuple):
    """The bounds of each row's cut, as `order`s."""

    low: Tensor  # int32 [n], the bracket: the cut probably lies between its two ends
    high: Tensor  # int32 [n]; below `low` where everything down to the limit is kept
    tied: Tensor  # int32 [n], 1: values equal to low or high are many, and counted, not noted
    limit: Tensor  # int32 [n], nothing lower may be kept
    limit_id: Tensor  # int32 [n], the last token that may be kept of those equal to the limit
    floor: Tensor  # int32 [n], the cut is proved not to be lower
    ceiling: Tensor  # int32 [n], the cut is proved not to be higher
    from_above: Tensor  # int32 [n], 1: `left` counts from the ceiling, 0: from the floor
    num_noted: Tensor  # int32 [n], counted up by the scan; -1 of rows that are decided
    left: Tensor  # float64 [n], measure between the cut and the ceiling or the floor


class Row(NamedTuple):
    """A row's parameters and bracket; values within the kernels."""

    by_mass: Any  # the measure is a mass, not a count
    second: Any  # see `is_second`
    low: Any
    high: Any
    tied: Any
    limit: Any
    limit_id: Any
    temperature: Any
    top_k: Any
    top_p: Any


class Wanted(NamedTuple):
    """The bounds of the cut that a turn looks for; values within the kernels, as in `Brackets`."""

    by_mass: Any
    limit: Any
    limit_id: Any
    floor: Any
    ceiling: Any
    from_above: Any
    left: Any


@jit
def load_row(source, brackets, i, state):
    """Load the `Row` of logit row i."""
    row = sampling_row(source, i)
    floats = source.floats + row * NUM_FLOATS
    top_k = tl.load(source.ints + row * NUM_INTS + _TOP_K)
    second = is_second(state)
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
        tl.load(floats + _TOP_P),
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
    """The next higher order; a negative zero has none of its own, so -1 is skipped."""
    return orders + tl.where(orders == -2, 2, 1)


@jit
def lower(orders):
    """The next lower order; -1, a negative zero, is skipped."""
    return orders - tl.where(orders == 0, 2, 1)


@jit
def floor_order(top, temperature, log_min_p):
    """The order of the lowest finite float32 that min-p keeps beside the row's maximum `top`."""
    floor = top + temperature * log_min_p
    nearest = floor.to(tl.float32)
    lowest = order(nearest)
    lowest = tl.where(nearest.to(tl.float64) < floor, higher(lowest), lowest)
    return tl.maximum(lowest, LOWEST_ORDER)


@jit
def row_top(stats, i, num_tiles, padded_tiles: tl.constexpr):
    """The highest logit of logit row i."""
    tiles = tl.arange(0, padded_tiles)
    at = i * num_tiles + tiles
    return tl.max(tl.load(stats.maxima + at, mask=tiles < num_tiles, other=float("-inf")), 0)


@jit
def reopened(brackets, i, by_mass):
    """The `Wanted` cut as the last turn has bounded it."""
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
    """The `Wanted` cut before its first turn.

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
    """The sum of the tiles' masses relative to the row's maximum, float64."""
    tiles = tl.arange(0, padded_tiles)
    at = i * num_tiles + tiles
    maxima = tl.load(stats.maxima + at, mask=tiles < num_tiles, other=float("-inf"))
    masses = tl.load(stats.masses + at, mask=tiles < num_tiles, other=0.0)
    return tl.sum(masses * tl.exp((maxima - top).to(tl.float64) / temperature), 0)
