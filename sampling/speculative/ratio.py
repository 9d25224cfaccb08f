# mypy: allow-untyped-defs, allow-incomplete-defs
"""Device functions for the target's p and the draft's q of tokens, and their ratio.

No softmax of either is written anywhere: kernels work on log p_x = (x - max) / T - log mass and on
log q_x likewise, in float64, and on 1 - q / p without cancellation. `speculative.verdict` accepts
drafts by their ratio.
"""

from __future__ import annotations

from sampling.device.triton_support import jit, tl
from sampling.kernels.logits import TILE, load_raw, processed
from sampling.kernels.order import is_kept
from sampling.kernels.race import load_tiles, log_sum
from sampling.kernels.row_params import load_temperature, sampling_row


@jit
def target_logits(
    source,
    cuts,
    i,
    token_ids,
    first_tile,
    last_tile,
    edited: tl.constexpr,
    filtered: tl.constexpr,
):
    """Load the target's processed logits, float64; -inf beyond the cut."""
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        values = processed(values, token_ids, source, i, first_tile, last_tile)
    if filtered:
        cut, last = tl.load(cuts.thresholds + i), tl.load(cuts.last_ids + i)
        kept = is_kept(values, token_ids, cut, last)
        values = tl.where(kept, values, float("-inf"))
    return values.to(tl.float64)


@jit
def draft_logits(source, logits, slot, token_ids):
    """Load the draft's logits, float64, -inf outside what is held; see `draft_slot`."""
    if source.first_tile is None:
        width, columns = source.vocab_size, token_ids
    else:
        first = source.first_tile * TILE
        width, columns = source.end_id - first, token_ids - first
    inside = (columns >= 0) & (columns < width)
    at = logits + slot * width + columns
    return tl.load(at, mask=inside, other=float("-inf")).to(tl.float64)


@jit
def draft_slot(source, i, k, depth):
    """The index of a depth's draft logits for the sampling row of logit row i, of k a row."""
    return sampling_row(source, i) * k + depth


@jit
def draft_log_ratio(
    source,
    cuts,
    draft,
    work,
    at,
    tiles,
    num_tiles,
    padded_tiles: tl.constexpr,
    edited: tl.constexpr,
    filtered: tl.constexpr,
):
    """log p(x) - log q(x) for a draft x, float64; stores what `Verdicts.scalars` holds.

    Args:
        work: `verdict.Verdicts`. at: of a draft under test, its id, row, depth and logit row.
        tiles: of the target's logit row.
    """
    temperature = load_temperature(source, at.i)
    top, mass = log_sum(tiles.maxima, tiles.masses, temperature)
    x = at.token_id
    ids = x + tl.zeros((2,), tl.int32)  # two lanes alike: a block must not be one token
    values = target_logits(source, cuts, at.i, ids, x // TILE, x // TILE + 1, edited, filtered)
    ratio = (values - top) / temperature - mass
    index = at.row * work.k + at.depth
    draft_tiles = load_tiles(draft, index, num_tiles, padded_tiles)
    draft_top, draft_mass = log_sum(draft_tiles.maxima, draft_tiles.masses, 1.0)
    slot = draft_slot(source, at.i, work.depths, at.depth)
    ratio -= draft_logits(source, draft.logits, slot, ids) - draft_top - draft_mass
    scalars = work.scalars + index * 4
    tl.store(scalars, top.to(tl.float64))
    tl.store(scalars + 1, mass)
    tl.store(scalars + 2, draft_top.to(tl.float64))
    tl.store(scalars + 3, draft_mass)
    return tl.max(ratio, 0)  # NaN, where q is bad, must stay NaN or become -inf


@jit
def minus_expm1(d):
    """1 - exp(d) of float64 d < 0, to a relative error of 2^-50.

    It divides out the error of exp, as `noise.exponential` does of its logarithm (Goldberg 1991,
    theorem 4).
    """
    w = tl.exp(d)
    ratio = (1.0 - w) / tl.where(w == 1.0, 1.0, tl.log(w))
    return tl.where(w == 1.0, -d, tl.where(w == 0.0, 1.0, ratio * d))


@jit
def minus_expm1_f32(d):
    """1 - exp(d) of float32 d < 0, to a relative error of 2^-22: Taylor's series above -1/2."""
    series = 1.0 + d * (1.0 / 8)
    series = 1.0 + d * (1.0 / 7) * series
    series = 1.0 + d * (1.0 / 6) * series
    series = 1.0 + d * (1.0 / 5) * series
    series = 1.0 + d * (1.0 / 4) * series
    series = 1.0 + d * (1.0 / 3) * series
    series = 1.0 + d * (1.0 / 2) * series
    return tl.where(d > -0.5, -d * series, 1.0 - tl.exp(d))


@jit
def log_ratio(values, drafts, scalars, inverse):
    """log p and log q - log p, float64; the latter is 0 where p is 0.

    Args:
        values, drafts: `target_logits` and `draft_logits` of the same tokens.
        scalars: pointer to the four numbers of `Verdicts.scalars`.
        inverse: 1 / T of the target.
    """
    log_p = (values - tl.load(scalars)) * inverse - tl.load(scalars + 1)
    log_q = (drafts - tl.load(scalars + 2)) - tl.load(scalars + 3)
    return log_p, tl.where(values > float("-inf"), log_q - log_p, 0.0)
