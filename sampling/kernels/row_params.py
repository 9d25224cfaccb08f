# mypy: allow-untyped-defs, allow-incomplete-defs
"""Device functions that load the parameters of one logit row from the tables of its request.

Logit row i is drawn for the sampling row `source.rows[i]`; the tables are those of `SamplingRows`,
one record of integers and one of floats a row. `source` is a `kernels.logits.Source`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sampling import rows
from sampling.device.triton_support import constexpr, jit, tl

FLAGS, NUM_INTS = constexpr(rows.FLAGS), constexpr(rows.NUM_INTS)
PROMPT_LEN = constexpr(rows.PROMPT_LEN)
TEMPERATURE, NUM_FLOATS = constexpr(rows.TEMPERATURE), constexpr(rows.NUM_FLOATS)
RANDOM, FILTERED = constexpr(rows.RANDOM), constexpr(rows.FILTERED)
PROCESSED, NORMALIZED = constexpr(rows.PROCESSED), constexpr(rows.NORMALIZED)

_SEED, _CHOICE = constexpr(rows.SEED), constexpr(rows.CHOICE)
_TOP_K, _TOP_P = constexpr(rows.TOP_K), constexpr(rows.TOP_P)
_LOG_MIN_P = constexpr(rows.LOG_MIN_P)


@jit
def sampling_row(source, i):
    """The sampling row of logit row i, int64."""
    return tl.load(source.rows + i).to(tl.int64)


@jit
def load_flags(source, row):
    """The FLAGS bits of a sampling row."""
    return tl.load(source.ints + row * NUM_INTS + FLAGS)


@jit
def positive(temperature):
    """The temperature to divide by: 1 for a greedy row, whose temperature is 0."""
    return tl.where(temperature == 0.0, 1.0, temperature)


@jit
def load_temperature(source, i):
    """The temperature of logit row i, float64; 1 where it is greedy."""
    return positive(tl.load(source.floats + sampling_row(source, i) * NUM_FLOATS + TEMPERATURE))


@jit
def is_random(source, i):
    """Whether logit row i is drawn at random, not greedily."""
    return (load_flags(source, sampling_row(source, i)) & RANDOM) != 0


@jit
def noise_key(source, i):
    """Seed, choice and the position of the token that logit row i draws."""
    row = sampling_row(source, i)
    seed = tl.load(source.ints + row * NUM_INTS + _SEED)
    choice = tl.load(source.ints + row * NUM_INTS + _CHOICE)
    return seed, choice, tl.load(source.positions + i)


class Filters(NamedTuple):
    """The parameters of a random row's top-k and top-p; values within the kernels."""

    temperature: Any  # float64, above 0
    top_k: Any  # int64, 0 keeps all
    top_p: Any  # float64, 1 keeps all


@jit
def load_filters(source, row):
    """The `Filters` of a sampling row."""
    floats = source.floats + row * NUM_FLOATS
    temperature, top_p = tl.load(floats + TEMPERATURE), tl.load(floats + _TOP_P)
    return Filters(temperature, tl.load(source.ints + row * NUM_INTS + _TOP_K), top_p)


@jit
def load_log_min_p(source, row):
    """log(min-p) of a sampling row, float64; -inf keeps all."""
    return tl.load(source.floats + row * NUM_FLOATS + _LOG_MIN_P)
