# mypy: allow-untyped-defs, allow-incomplete-defs
"""Logits as integers in the same order, in Triton."""

from __future__ import annotations

from sampling.triton_support import jit, tl


@jit
def order(values):
    """int32 in the order of float32 values; both zeros alike."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def value_of(orders):
    """The float32 value of an `order`."""
    return (orders ^ ((orders >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@jit
def rank_key(orders, token_ids):
    """int64, larger for the token that comes first: higher logit, then lower id."""
    return (orders.to(tl.int64) << 32) | (0x7FFFFFFF - token_ids).to(tl.int64)
