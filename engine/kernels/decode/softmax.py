# mypy: allow-untyped-defs, allow-incomplete-defs
"""The softmax over a share's keys and its sum of their values, block by block.

Letters in comments as in `attention`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from engine.kernels.decode.shares import rescale
from engine.kernels.pages import (
    LOG2E,
    capped,
    cells_of,
    load_keys,
    load_value_pairs,
    load_values,
)
from sampling.triton_support import jit, tl


class DecodeTile(NamedTuple):
    """The queries of a row and key head; values within the kernel."""

    queries: Any  # [M, D]
    factors: Any  # [M], that scores with keys in float8 are multiplied with
    at: Any  # [M, D], their offsets in q, and those of their outputs in out
    mask: Any  # [M, D], of those there are
    inside: Any  # [M], likewise
    heads: Any  # [M]
    positions: Any  # [M]


@jit
def _distances(tile, n, inside, seq_len, shape: tl.constexpr):
    """Key position - query position [M or 1, N], and whether a query sees a key n [N]."""
    if shape.query_len == 1:  # a comparison for each key instead of each score
        distance = (n - seq_len + 1)[None, :]
        seen = inside[None, :]
    else:
        distance = n[None, :] - tile.positions[:, None]
        seen = inside[None, :] & (distance <= 0)
    return distance, seen


@jit
def _scores(tile, keys, distance, slopes, rules, scales, shape: tl.constexpr):
    """Attention scores of queries and keys [D, N] in units of log2, -inf outside the window."""
    scores = tl.dot(tile.queries, keys, input_precision=shape.precision)
    if scales is None:
        scores *= rules.scale
    else:
        scores *= (rules.scale * tile.factors)[:, None]
    scores = capped(scores, rules.softcap)
    if rules.alibi_slopes is not None:
        scores += slopes[:, None] * distance.to(tl.float32)
    scores *= LOG2E
    if rules.window is not None:
        scores = tl.where(distance > -rules.window, scores, float("-inf"))
    return scores


@jit
def attend(
    top, total, acc, tile, paged, table, head, start, end, seq_len, rules, shape: tl.constexpr
):
    """Maxima, sums of weights and weighted values, continued over the keys from start to end."""
    slopes = None
    if rules.alibi_slopes is not None:
        slopes = tl.load(rules.alibi_slopes + tile.heads, mask=tile.inside, other=0.0)
    # Values in float8 come in pairs, whose halves have sums of their own.
    in_half: tl.constexpr = paged.scales is not None and tile.queries.dtype == tl.float16
    in_pairs: tl.constexpr = in_half and shape.head_dim % 2 == 0
    if in_pairs:
        pairs = tl.reshape(acc, (shape.padded_queries, shape.padded_dim // 2, 2))
        even, odd = tl.split(pairs)
    for at in range(start, end, shape.block):
        n = at + tl.arange(0, shape.block)
        inside = n < end
        block_ids = tl.load(table + n // shape.page, mask=inside, other=0)
        cells = cells_of(block_ids, n, head, shape)
        keys = load_keys(paged.pages, cells, inside, shape).to(tile.queries.dtype)
        distance, seen = _distances(tile, n, inside, seq_len, shape)
        scores = _scores(tile, keys, distance, slopes, rules, paged.scales, shape)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = rescale(scores, higher[:, None])
        shrink = rescale(top, higher)
        total = total * shrink + tl.sum(weights, 1)
        if in_pairs:
            first, second = load_value_pairs(paged.pages, cells, inside, shape)
            weights = weights.to(tl.float16)
            even = tl.dot(weights, first, even * shrink[:, None])
            odd = tl.dot(weights, second, odd * shrink[:, None])
        else:
            values = load_values(paged.pages, cells, inside, shape).to(tile.queries.dtype)
            acc = acc * shrink[:, None]
            acc = tl.dot(weights.to(values.dtype), values, acc, input_precision=shape.precision)
        top = higher
    if in_pairs:
        acc = tl.reshape(tl.join(even, odd), (shape.padded_queries, shape.padded_dim))
    return top, total, acc


@jit
def add_sinks(tile, top, total, acc, sinks):
    """Add the sinks' weights, which have no values, to the sums."""
    sink = tl.load(sinks + tile.heads, mask=tile.inside, other=float("-inf")) * LOG2E
    higher = tl.maximum(top, sink)
    shrink = rescale(top, higher)
    return total * shrink + rescale(sink, higher), acc * shrink[:, None]
