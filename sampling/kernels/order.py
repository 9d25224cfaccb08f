# mypy: allow-untyped-defs, allow-incomplete-defs
"""Device functions for the order of tokens: higher logit first, then lower id.

Float32 logits map to integers in the same order, so that a cut can be bisected exactly.
"""

from __future__ import annotations

from sampling.device.triton_support import jit, tl


@jit
def order(values):
    """The `order` of float32 values: int32 that compare as they do; both zeros alike."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def value_of(orders):
    """The float32 value of an `order`."""
    return (orders ^ ((orders >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@jit
def rank_key(orders, token_ids):
    """int64 keys, larger for the token that comes first: higher logit, then lower id."""
    return (orders.to(tl.int64) << 32) | (0x7FFFFFFF - token_ids).to(tl.int64)


@jit
def key_id(key):
    """The id that a `rank_key` holds, int32."""
    return ((key & 0x7FFFFFFF) ^ 0x7FFFFFFF).to(tl.int32)


@jit
def is_kept(values, token_ids, threshold, last_id):
    """Whether a `race.Cut` keeps tokens: higher values, and equal ones up to an id.

    The values are logits beside a logit as threshold, or `order`s beside an `order`.
    """
    return (values > threshold) | ((values == threshold) & (token_ids <= last_id))
