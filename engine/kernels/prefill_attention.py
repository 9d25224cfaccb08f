# mypy: allow-untyped-defs, allow-incomplete-defs
"""Attention of rows that prefill over the paged cache, with every feature of AttentionSpec.

A program takes a key head and a tile: some of a row's query tokens with all query heads of that key
head, so that keys are read once for them. It goes over the row's keys in ascending order, in blocks
that begin at multiples of their length, and a key that a query does not see adds exactly nothing.
So a token's output is the same whatever is beside it in a step and however its prompt is cut into
chunks, bit for bit, where a program goes over all keys. That does not hold where several programs
divide them (`prefill_shares`), as they do for rows of many keys in a step of few tiles: how many
divide a tile's keys depends on the other tiles and rows and on where the tile ends, and the last
bits of its sums depend on that. The torch twin is `PlainAttention`.

Letters in comments: G query heads a key head, M queries of a tile (token by token, padded), D
head_dim (padded to a power of two), N keys a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels.decode.softmax import add_sinks
from engine.kernels.decode.split_keys import leave_share, rescale
from engine.kernels.pages import (
    LOG2E,
    MIN_DOT,
    AttentionShape,
    Rules,
    capped,
    cells_of,
    first_key,
    in_half,
    load_block_ids,
    load_keys,
    load_tile,
    load_values,
    query_tiles,
    times_scale,
)
from engine.kernels.prefill_shares import Divided, add_up, share_of_tile
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton


class Tiling(NamedTuple):
    """How the kernel is cut: queries M of a tile, keys N of a turn, warps, stages of the loop."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


def tiling_of(head_dim: int, dtype: torch.dtype, device: torch.device) -> Tiling:
    """The tiling of a layer; a wide head's sums, M * D float32, must fit into registers.

    GPUs before Ampere have 64 KiB of shared memory, which must hold a turn's operands.
    """
    is_old = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8
    if dtype == torch.float32 or is_old:
        return Tiling(16, 32, 4, 1)
    if head_dim > 128:
        return Tiling(64, 32, 4, 3)
    return Tiling(64, 64, 4, 3)


def tile_width(group: int, tiling: Tiling) -> int:
    """The query tokens of a tile, each with `group` query heads a key head."""
    return max(1, tiling.queries // group)


def prefill_tiles(
    query_starts: npt.NDArray[np.int32],
    seq_lens: npt.NDArray[np.int32],
    table_width: int,
    group: int,
    tiling: Tiling,
) -> npt.NDArray[np.int64]:
    """The tiles of R rows for `prefill_attention`, those with the most keys first.

    The longest begin first, so that none of them is left when all others have ended.

    Args:
        query_starts: [R + 1]; row r brings the tokens query_starts[r]:query_starts[r + 1].
        seq_lens: [R]; keys a row's last query token sees, itself included.
        table_width: columns of the rows' block tables.
        group: query heads a key head.

    Returns:
        As `query_tiles`. A tile of zeros has no tokens: the kernel reads and writes none.
    """
    tables = np.arange(len(seq_lens), dtype=np.int64) * table_width
    width = tile_width(group, tiling)
    tiles = query_tiles(query_starts, seq_lens.astype(np.int64), tables, width)
    return tiles[np.argsort(-(tiles[:, 2] + tiles[:, 3]), kind="stable")]


class Queries(NamedTuple):
    """The queries of a tile and key head; values within the kernel."""

    q: Any  # [M, D]
    factors: Any  # [M], that scores with keys in float8 are multiplied with
    starts: Any  # [M], where each begins in q, and its output in out
    at: Any  # [M, D], the offsets of all their numbers
    mask: Any  # [M, D], of those there are
    inside: Any  # [M], likewise
    heads: Any  # [M]
    positions: Any  # [M]


class Sums(NamedTuple):
    """An online softmax: [M] maxima and sums of weights, [M, D] weighted values."""

    top: Any
    total: Any
    acc: Any


@jit
def load_queries(q, tile, head, scales, shape: tl.constexpr):
    """Load the queries of a tile and key head, `in_half` for keys in float8."""
    m, d = tl.arange(0, shape.padded_queries), tl.arange(0, shape.padded_dim)
    token, heads = m // shape.group, head * shape.group + m % shape.group
    inside = token < tile.num_tokens
    mask = inside[:, None] & (d < shape.head_dim)[None, :]
    at_token = (tile.first_token + token) * (shape.kv_heads * shape.group)
    at = (at_token + heads)[:, None] * shape.head_dim + d[None, :]
    loaded = tl.load(q + at, mask=mask, other=0.0)
    factors = tl.full((shape.padded_queries,), 1.0, tl.float32)
    if scales is not None:
        loaded, factors = in_half(loaded)
        factors *= tl.load(scales + head)
    starts = (at_token + heads) * shape.head_dim
    return Queries(loaded, factors, starts, at, mask, inside, heads, tile.num_before + token)


@jit
def scores_of(
    queries, keys, n, slopes, rules, shape: tl.constexpr, hides: tl.constexpr, in_fp8: tl.constexpr
):
    """Scores of the queries [M, D] and keys [D, N], before the last factor, -inf where hidden.

    What is masked and what is not goes through the same roundings: the mask comes before the
    factor, which one instruction applies together with the subtraction of the maximum.
    """
    scores = tl.dot(queries.q, keys, input_precision=shape.precision)
    if in_fp8:
        scores *= queries.factors[:, None]
    distance = n[None, :] - queries.positions[:, None]
    if rules.softcap is not None or rules.alibi_slopes is not None:
        scores = capped(scores * rules.scale, rules.softcap)
        if rules.alibi_slopes is not None:
            scores += slopes[:, None] * distance.to(tl.float32)
    if hides and shape.is_causal:
        seen = distance <= 0
        if rules.window is not None:
            seen = seen & (distance > -rules.window)
        scores = tl.where(seen, scores, float("-inf"))
    elif hides and rules.window is not None:
        scores = tl.where(distance > -rules.window, scores, float("-inf"))
    return scores


@jit
def _go_on(
    sums,
    queries,
    tile,
    slopes,
    pages,
    head,
    start,
    end,
    factor,
    rules,
    shape: tl.constexpr,
    hides: tl.constexpr,
):
    """Extend the sums over the keys from start, a multiple of N, to end.

    Args:
        hides: whether some queries may not see some of these keys.
    """
    top, total, acc = sums.top, sums.total, sums.acc
    in_fp8: tl.constexpr = pages.dtype.element_ty == tl.float8e4nv
    for at in range(start, end, shape.block):
        n = at + tl.arange(0, shape.block)
        inside = n < tile.end
        cells = cells_of(load_block_ids(tile, n, shape), n, head, shape)
        keys = load_keys(pages, cells, inside, shape).to(queries.q.dtype)
        scores = scores_of(queries, keys, n, slopes, rules, shape, hides, in_fp8)
        higher = tl.maximum(top, tl.max(scores, 1) * factor)
        base = tl.where(higher == float("-inf"), 0.0, higher)  # no key was seen yet
        weights = tl.exp2(scores * factor - base[:, None])
        shrink = rescale(top, higher)
        total = total * shrink + tl.sum(weights, 1)
        values = load_values(pages, cells, inside, shape).to(queries.q.dtype)
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision=shape.precision)
        top = higher
    return Sums(top, total, acc)


@jit
def _attend(queries, tile, pages, head, keys, rules, shape: tl.constexpr):
    """The sums over the keys that the tile's queries see, or over a share of them, `keys`."""
    factor = (
        LOG2E
        if rules.softcap is not None or rules.alibi_slopes is not None
        else (rules.scale * LOG2E)
    )
    slopes = None
    if rules.alibi_slopes is not None:
        slopes = tl.load(rules.alibi_slopes + queries.heads, mask=queries.inside, other=0.0)
    sums = Sums(
        tl.full((shape.padded_queries,), float("-inf"), tl.float32),
        tl.full((shape.padded_queries,), 0.0, tl.float32),
        tl.full((shape.padded_queries, shape.padded_dim), 0.0, tl.float32),
    )
    start, end = first_key(tile, rules, shape), tile.end
    if keys is not None:
        start, end = keys.start, keys.end
    if rules.window is None:
        whole = (tile.num_before + 1) // shape.block * shape.block  # keys that every query sees
        if keys is not None:
            whole = tl.minimum(tl.maximum(whole, start), end)
        sums = _go_on(
            sums, queries, tile, slopes, pages, head, start, whole, factor, rules, shape, False
        )
        start = whole
    return _go_on(sums, queries, tile, slopes, pages, head, start, end, factor, rules, shape, True)


@jit
def _prefill_kernel(
    q, out, pages, scales, tables, tiles, room, rules, shape: tl.constexpr, overlap: tl.constexpr
):
    begin_next(overlap)
    # Programs of one tile are neighbours: their heads lie side by side in memory.
    place, keys = tl.program_id(0), None
    head, i = place % shape.kv_heads, place // shape.kv_heads
    if room is None:
        wait_for_last(overlap)
    tile = load_tile(tables, tiles, i)
    if room is not None:
        # Tiles were copied before the step's first kernel, so these need not wait to end.
        keys = share_of_tile(tile, room.least, rules, shape)
        if tl.program_id(1) >= keys.active:
            return
        wait_for_last(overlap)
    queries = load_queries(q, tile, head, scales, shape)
    sums = _attend(queries, tile, pages, head, keys, rules, shape)
    if keys is not None:  # noqa: SIM102  # what is left out is not compiled
        if keys.active > 1:
            cell = place * tl.num_programs(1) + tl.program_id(1)
            if leave_share(
                room, place, cell, keys.active, queries, sums.top, sums.total, sums.acc, shape
            ):
                add_up(room, out, queries, head, keys.active, scales, rules.sinks, shape)
            return
    _store(out, queries, sums, head, scales, rules.sinks, shape)


@jit
def _store(out, queries, sums, head, scales, sinks, shape: tl.constexpr):
    """Store what the queries of a tile and key head attend to."""
    total, acc = sums.total, sums.acc
    if sinks is not None:
        total, acc = add_sinks(queries, sums.top, total, acc, sinks)
    total = tl.where(total == 0.0, 1.0, total)  # padded queries
    acc = times_scale(acc, scales, shape.kv_heads + head)
    tl.store(out + queries.at, (acc / total[:, None]).to(out.dtype.element_ty), mask=queries.mask)


def prefill_attention(
    spec: AttentionSpec,
    q: torch.Tensor,
    pages: torch.Tensor,
    tables: torch.Tensor,
    tiles: torch.Tensor,
    out: torch.Tensor,
    tiling: Tiling | None = None,
    scales: torch.Tensor | None = None,
    divided: Divided | None = None,
) -> None:
    """Attend causally from the tiles' tokens to their rows' keys, those of the tokens included.

    Args:
        q: [T, num_q_heads, D]; contiguous in the fused decoder, another is copied.
        pages: one layer of a KVCache.
        tables: int32, contiguous block tables of the tiles' rows.
        tiles: `prefill_tiles` of T tokens, on the device.
        out: as q, contiguous.
        tiling: the one that made `tiles`; None is `tiling_of` the layer.
        scales: `KVCache.layer_scales`.
        divided: how tiles' keys are divided among programs, None for a program a tile and key head.
    """
    assert tables.is_contiguous()
    assert out.is_contiguous()
    head_dim, kv_heads = q.shape[2], spec.num_kv_heads
    tiling = tiling or tiling_of(head_dim, q.dtype, q.device)
    group = spec.num_q_heads // kv_heads
    shape = AttentionShape(
        kv_heads=kv_heads,
        group=group,
        query_len=tile_width(group, tiling),
        head_dim=head_dim,
        page=pages.shape[2],
        padded_queries=max(tiling.queries, triton.next_power_of_2(group)),
        padded_dim=max(MIN_DOT, triton.next_power_of_2(head_dim)),
        block=tiling.keys,
        precision="ieee" if q.dtype == torch.float32 else "tf32",
    )
    _prefill_kernel[(len(tiles) * kv_heads, divided.most if divided else 1)](
        q.contiguous(),
        out,
        pages,
        scales,
        tables,
        tiles,
        divided.room if divided else None,
        Rules.of(spec),
        shape=shape,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
        **overlap_of(q),
    )
