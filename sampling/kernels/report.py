# mypy: allow-untyped-defs, allow-incomplete-defs
"""Device functions for a row's logprobs: which values it reports and how they are scaled."""

from __future__ import annotations

from sampling import rows
from sampling.device.triton_support import constexpr, jit, tl
from sampling.kernels.logits import TILE, load_raw, processed
from sampling.kernels.order import is_kept
from sampling.kernels.row_params import (
    NORMALIZED,
    NUM_FLOATS,
    PROCESSED,
    TEMPERATURE,
    load_flags,
    positive,
    sampling_row,
)

_LOGPROBS = constexpr(rows.LOGPROBS)


@jit
def flags_of(source, i):
    """The FLAGS bits of logit row i."""
    return load_flags(source, sampling_row(source, i))


@jit
def reported_values(source, i, token_ids, mask, flags, first_tile, last_tile, edited: tl.constexpr):
    """Load the values that row i reports, before scaling; both zeros are 0.0."""
    values = load_raw(source, i, token_ids, mask)
    if edited:  # noqa: SIM102 - known to the compiler, the flags are not
        if (flags & PROCESSED) != 0:
            values = processed(values, token_ids, source, i, first_tile, last_tile)
    return tl.where(values == 0.0, 0.0, values)


@jit
def tile_maxima(work, at, mask, flags):
    """Load the tile maxima of the values that a row reports; both zeros are 0.0."""
    if (flags & PROCESSED) != 0:
        maxima = tl.load(work.maxima + at, mask=mask, other=float("-inf"))
    else:
        maxima = tl.load(work.raw_maxima + at, mask=mask, other=float("-inf"))
    return tl.where(maxima == 0.0, 0.0, maxima)


@jit
def scaled(values, token_ids, source, work, i, flags, filtered, padded_tiles: tl.constexpr):
    """Scale values: float32((value - base) / T - offset), -inf beyond the cut.

    Raw rows have base 0 and T = 1.
    """
    result = values.to(tl.float64)
    kept = values > float("-inf")  # -inf - -inf would be NaN where a row is all -inf
    if (flags & PROCESSED) != 0:
        row = sampling_row(source, i)
        temperature = tl.load(source.floats + row * NUM_FLOATS + TEMPERATURE)
        if (flags & NORMALIZED) != 0:
            num_tiles, tile = tl.cdiv(source.vocab_size, TILE), tl.arange(0, padded_tiles)
            result -= tl.max(tile_maxima(work, i * num_tiles + tile, tile < num_tiles, flags), 0)
        result = result / positive(temperature)
        result = tl.minimum(result, 3.4028234663852886e38)  # float32's largest
        if filtered != 0:
            cut = tl.load(work.cut_values + i)
            last = tl.load(work.cut_ids + i)
            kept = kept & is_kept(values, token_ids, cut, last)
    return tl.where(kept, result - tl.load(work.offsets + i), float("-inf")).to(tl.float32)


@jit
def is_wanted(work, i, flags):
    """Whether row i reports and has a token to report."""
    return ((flags & _LOGPROBS) != 0) & (tl.load(work.token_ids + i) >= 0)
