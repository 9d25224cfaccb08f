# mypy: allow-untyped-defs, allow-incomplete-defs
"""The target p and the draft q of tokens, in Triton.

No softmax of either is written anywhere: kernels work on log p_x = (x - max) / T - log mass and on
log q_x likewise, in float64, and on 1 - q / p without cancellation.
"""

from __future__ import annotations

from sampling.kernels.logits import load_raw, processed
from sampling.triton_support import jit, tl


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
    """Processed logits, -inf beyond the cut, float64."""
    values = load_raw(source, i, token_ids, token_ids >= 0)
    if edited:
        values = processed(values, token_ids, source, i, first_tile, last_tile)
    if filtered:
        cut, last = tl.load(cuts.thresholds + i), tl.load(cuts.last_ids + i)
        kept = (values > cut) | ((values == cut) & (token_ids <= last))
        values = tl.where(kept, values, float("-inf"))
    return values.to(tl.float64)


@jit
def draft_logits(source, logits, slot, token_ids):
    """float64; `slot` counts sampling rows times draft steps."""
    inside = (token_ids >= 0) & (token_ids < source.vocab_size)
    at = logits + slot * source.vocab_size + token_ids
    return tl.load(at, mask=inside, other=float("-inf")).to(tl.float64)


@jit
def draft_slot(source, i, k, depth):
    """Where the draft logits of a depth lie, for the sampling row of logit row i."""
    return tl.load(source.rows + i).to(tl.int64) * k + depth


@jit
def minus_expm1(d):
    """1 - exp(d) of float64 d < 0, to 2^-50; as `noise.exponential` (Goldberg 1991)."""
    w = tl.exp(d)
    ratio = (1.0 - w) / tl.where(w == 1.0, 1.0, tl.log(w))
    return tl.where(w == 1.0, -d, tl.where(w == 0.0, 1.0, ratio * d))


@jit
def minus_expm1_f32(d):
    """The same of float32 d, to 2^-22: Taylor's series above -1/2."""
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
    """log p and log q - log p, float64; 0 for the latter where p is 0."""
    log_p = (values - tl.load(scalars)) * inverse - tl.load(scalars + 1)
    log_q = (drafts - tl.load(scalars + 2)) - tl.load(scalars + 3)
    return log_p, tl.where(values > float("-inf"), log_q - log_p, 0.0)
