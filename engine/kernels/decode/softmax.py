# mypy: allow-untyped-defs, allow-incomplete-defs
"""The softmax over a share's keys and its sum of their values, block by block.

Letters in comments as in `attention`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from engine.kernels.decode.split_keys import rescale
from engine.kernels.pages import (
    LOG2E,
    MIN_DOT,
    capped,
    cells_of,
    load_key_pairs,
    load_keys,
    load_value_pairs,
    load_values,
)
from sampling.device.triton_support import constexpr, jit, tl

_MIN_DOT = constexpr(MIN_DOT)


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
        seen = inside[None, :]
        if shape.is_causal:
            seen = seen & (distance <= 0)
    return distance, seen


@jit
def _scores(tile, products, distance, slopes, rules, scales):
    """Attention scores of products [M, N] in units of log2, -inf outside the window."""
    is_linear: tl.constexpr = rules.softcap is None and rules.alibi_slopes is None
    scale = rules.scale * LOG2E if is_linear else rules.scale
    scores = products * (scale if scales is None else (scale * tile.factors)[:, None])
    if not is_linear:
        scores = capped(scores, rules.softcap)
        if rules.alibi_slopes is not None:
            scores += slopes[:, None] * distance.to(tl.float32)
        scores *= LOG2E
    if rules.window is not None:
        scores = tl.where(distance > -rules.window, scores, float("-inf"))
    return scores


@jit
def _split_pairs(values, shape: tl.constexpr):
    """The even and the odd columns of values [M, D], each [M, D / 2]."""
    return tl.split(tl.reshape(values, (shape.padded_queries, shape.padded_dim // 2, 2)))


@jit
def _cells(table, head, n, i, inside, shape: tl.constexpr):
    """The cells of keys n [N], of which i are the places in their block."""
    block_ids = tl.load(table + n // shape.page, mask=inside, other=0)
    # Where pages divide blocks, which begin at multiples of their size, n's place in its page
    # is i's: every turn has the same.
    within = n if shape.block % shape.page else i
    return cells_of(block_ids, within, head, shape)


class _Ahead(NamedTuple):
    """A block of keys [D, N] and values [N, D], loaded ahead; values within the kernel."""

    block_keys: Any
    block_values: Any


@jit
def load_ahead(paged, table, head, start, end, shape: tl.constexpr):
    """Load the block of keys and values at start, of which there are none from end on."""
    i = tl.arange(0, shape.block)
    inside = start + i < end
    cells = _cells(table, head, start + i, i, inside, shape)
    return _Ahead(
        load_keys(paged.pages, cells, inside, shape), load_values(paged.pages, cells, inside, shape)
    )


@jit
def _weigh(
    top, total, products, tile, n, inside, seq_len, slopes, rules, scales, shape: tl.constexpr
):
    """The maxima and sums with a block's keys, its weights, and what earlier values shrink by."""
    distance, seen = _distances(tile, n, inside, seq_len, shape)
    scores = _scores(tile, products, distance, slopes, rules, scales)
    scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    weights = rescale(scores, higher[:, None])
    shrink = rescale(top, higher)
    return higher, total * shrink + tl.sum(weights, 1), weights, shrink


@jit
def _see_block(
    top, total, acc, tile, paged, table, head, at, end, seq_len, slopes, rules, ahead, shape
):
    """Extend the sums over the block of keys at `at`, which may have been loaded ahead."""
    i = tl.arange(0, shape.block)
    n = at + i
    inside = n < end
    if ahead is None:
        cells = _cells(table, head, n, i, inside, shape)
        keys = load_keys(paged.pages, cells, inside, shape).to(tile.queries.dtype)
    else:
        keys = ahead.block_keys.to(tile.queries.dtype)
    products = tl.dot(tile.queries, keys, input_precision=shape.precision)
    top, total, weights, shrink = _weigh(
        top, total, products, tile, n, inside, seq_len, slopes, rules, paged.scales, shape
    )
    if ahead is None:
        values = load_values(paged.pages, cells, inside, shape).to(tile.queries.dtype)
    else:
        values = ahead.block_values.to(tile.queries.dtype)
    acc = acc * shrink[:, None]
    acc = tl.dot(weights.to(values.dtype), values, acc, input_precision=shape.precision)
    return top, total, acc


@jit
def _attend_in_pairs(
    top, total, acc, tile, paged, table, head, start, end, seq_len, slopes, rules, shape
):
    """Attend in float8: keys and values come in pairs; the values' halves have their own sums."""
    keys_in_pairs: tl.constexpr = shape.padded_dim >= 2 * _MIN_DOT
    even, odd = _split_pairs(acc, shape)
    if keys_in_pairs:
        even_queries, odd_queries = _split_pairs(tile.queries, shape)
    for at in range(start, end, shape.block):
        i = tl.arange(0, shape.block)
        n = at + i
        inside = n < end
        cells = _cells(table, head, n, i, inside, shape)
        if keys_in_pairs:
            first, second = load_key_pairs(paged.pages, cells, inside, shape)
            products = tl.dot(odd_queries, second, tl.dot(even_queries, first))
        else:
            keys = load_keys(paged.pages, cells, inside, shape).to(tile.queries.dtype)
            products = tl.dot(tile.queries, keys, input_precision=shape.precision)
        top, total, weights, shrink = _weigh(
            top, total, products, tile, n, inside, seq_len, slopes, rules, paged.scales, shape
        )
        first, second = load_value_pairs(paged.pages, cells, inside, shape)
        weights = weights.to(tl.float16)
        even = tl.dot(weights, first, even * shrink[:, None])
        odd = tl.dot(weights, second, odd * shrink[:, None])
    acc = tl.reshape(tl.join(even, odd), (shape.padded_queries, shape.padded_dim))
    return top, total, acc


@jit
def attend(
    top,
    total,
    acc,
    tile,
    paged,
    table,
    head,
    start,
    end,
    seq_len,
    rules,
    ahead,
    shape: tl.constexpr,
):
    """Maxima, sums of weights and weighted values, continued over the keys from start to end.

    Args:
        ahead: the first block, if it was loaded; keys in float8 never are.
    """
    slopes = None
    if rules.alibi_slopes is not None:
        slopes = tl.load(rules.alibi_slopes + tile.heads, mask=tile.inside, other=0.0)
    in_half: tl.constexpr = paged.scales is not None and tile.queries.dtype == tl.float16
    if in_half and shape.head_dim % 2 == 0:
        top, total, acc = _attend_in_pairs(
            top, total, acc, tile, paged, table, head, start, end, seq_len, slopes, rules, shape
        )
    else:
        if ahead is not None:
            top, total, acc = _see_block(
                top,
                total,
                acc,
                tile,
                paged,
                table,
                head,
                start,
                end,
                seq_len,
                slopes,
                rules,
                ahead,
                shape,
            )
            start += shape.block
        for at in range(start, end, shape.block):
            top, total, acc = _see_block(
                top,
                total,
                acc,
                tile,
                paged,
                table,
                head,
                at,
                end,
                seq_len,
                slopes,
                rules,
                None,
                shape,
            )
    return top, total, acc


@jit
def add_sinks(tile, top, total, acc, sinks):
    """Add the sinks' weights, which have no values, to the sums."""
    sink = tl.load(sinks + tile.heads, mask=tile.inside, other=float("-inf")) * LOG2E
    higher = tl.maximum(top, sink)
    shrink = rescale(top, higher)
    return total * shrink + rescale(sink, higher), acc * shrink[:, None]
