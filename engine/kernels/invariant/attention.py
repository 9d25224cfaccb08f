# mypy: allow-untyped-defs, allow-incomplete-defs
"""Attention whose bits depend on a query and its keys alone, however they are computed.

A query's sum over its keys has one order. Keys are taken in blocks of N at multiples of N; blocks
make up shares that begin at fixed positions (`LEVELS`); every share is an online softmax of its
own, and shares are merged one after the other. Weights of a block are summed by the matrix units,
as their products with values are, so that warps may divide keys as they like. A block that a query
does not see, and a share of such blocks, change no bit. So it does not matter which queries are in
a tile, how many there are (the matrix units add alike for tiles of 16 rows and of 64), or which
programs take which shares:

    many rows, or prompts    a program takes a tile's shares one after the other
    few rows                 a program takes some shares of a row and leaves each one's sums;
                             the last program to arrive merges them in their order

Letters in comments: M queries of a tile (token by token, padded), D head_dim (padded to a power of
two), N keys a block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels.decode.split_keys import rescale
from engine.kernels.invariant.shares import (
    ONES,
    ShareRoom,
    ShareScratch,
    ends_share,
    leave,
    left,
    merged,
    no_sums,
    share_at,
    start_of,
)
from engine.kernels.pages import (
    LOG2E,
    MIN_DOT,
    AttentionShape,
    QueryTile,
    Rules,
    cells_of,
    first_key,
    load_block_ids,
    load_keys,
    load_tile,
    load_values,
    times_scale,
)
from engine.kernels.prefill_attention import Sums, Tiling, load_queries, scores_of
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton


class _Rows(NamedTuple):
    """Rows of equally many query tokens, or a list of tiles; one kernel argument."""

    tables: torch.Tensor
    stride: int
    seq_lens: torch.Tensor | None
    tiles: torch.Tensor | None


@jit
def _see_block(sums, queries, tile, slopes, pages, head, at, factor, rules, shape: tl.constexpr):
    """Extend a share's sums over the block of keys at `at`."""
    in_fp8: tl.constexpr = pages.dtype.element_ty == tl.float8e4nv
    n = at + tl.arange(0, shape.block)
    inside = n < tile.end
    cells = cells_of(load_block_ids(tile, n, shape), n, head, shape)
    keys = load_keys(pages, cells, inside, shape).to(queries.q.dtype)
    scores = scores_of(queries, keys, n, slopes, rules, shape, True, in_fp8)
    if not shape.is_causal:
        scores = tl.where(inside[None, :], scores, float("-inf"))
    higher = tl.maximum(sums.top, tl.max(scores, 1) * factor)
    base = tl.where(higher == float("-inf"), 0.0, higher)  # no key was seen yet
    weights = tl.exp2(tl.fma(scores, factor, -base[:, None]))
    shrink = rescale(sums.top, higher)
    values = load_values(pages, cells, inside, shape).to(queries.q.dtype)
    weights = weights.to(values.dtype)
    ones = tl.full((shape.block, ONES), 1.0, weights.dtype)
    total, acc = sums.total * shrink[:, None], sums.acc * shrink[:, None]
    total = tl.dot(weights, ones, total, input_precision=shape.precision)
    acc = tl.dot(weights, values, acc, input_precision=shape.precision)
    return Sums(higher, total, acc)


@jit
def _attend(
    sums, share, queries, tile, slopes, pages, head, start, end, factor, rules, shape: tl.constexpr
):
    """Attend to the keys from start, a multiple of N, to end; merge the shares that end there."""
    for at in range(start, end, shape.block):
        share = _see_block(share, queries, tile, slopes, pages, head, at, factor, rules, shape)
        if ends_share(at + shape.block):
            sums = merged(sums, share)
            share = no_sums(shape)
    return sums, share


@jit
def _row_tile(rows, row, shape: tl.constexpr):
    """The tile of all of a row's query tokens."""
    end = tl.load(rows.seq_lens + row)
    table = rows.tables + row * rows.stride
    return QueryTile(table, row * shape.query_len, shape.query_len, end - shape.query_len, end)


@jit
def _store(out, sums, queries, head, scales, rules, shape: tl.constexpr):
    """Store what the queries of a tile and key head attend to."""
    total, acc = tl.max(sums.total, 1), sums.acc
    if rules.sinks is not None:
        sinks = tl.load(rules.sinks + queries.heads, mask=queries.inside, other=float("-inf"))
        higher = tl.maximum(sums.top, sinks * LOG2E)
        shrink = rescale(sums.top, higher)
        total = tl.fma(total, shrink, rescale(sinks * LOG2E, higher))
        acc = acc * shrink[:, None]
    total = tl.where(total == 0.0, 1.0, total)  # padded queries
    acc = times_scale(acc, scales, shape.kv_heads + head)
    tl.store(out + queries.at, (acc / total[:, None]).to(out.dtype.element_ty), mask=queries.mask)


@jit(do_not_specialize=["stride"])
def _invariant_kernel(
    q,
    out,
    pages,
    scales,
    tables,
    stride,
    seq_lens,
    tiles,
    scratch,
    rules,
    shape: tl.constexpr,
    is_divided: tl.constexpr,
    overlap: tl.constexpr,
):
    begin_next(overlap)
    # Programs of one tile are neighbours: their heads lie side by side in memory.
    head, i = tl.program_id(0) % shape.kv_heads, (tl.program_id(0) // shape.kv_heads).to(tl.int64)
    wait_for_last(overlap)
    if tiles is None:
        tile = _row_tile(_Rows(tables, stride, seq_lens, tiles), i, shape)
    else:
        tile = load_tile(tables, tiles, i)
    queries = load_queries(q, tile, head, scales, shape)
    factor = (
        LOG2E
        if rules.softcap is not None or rules.alibi_slopes is not None
        else (rules.scale * LOG2E)
    )
    slopes = None
    if rules.alibi_slopes is not None:
        slopes = tl.load(rules.alibi_slopes + queries.heads, mask=queries.inside, other=0.0)
    first = first_key(tile, rules, shape)
    if is_divided:
        count: tl.constexpr = shape.query_len * shape.group
        first_share, end_share = share_at(first), share_at(tile.end - 1) + 1
        active = tl.minimum(end_share - first_share, tl.num_programs(1))
        if tl.program_id(1) >= active:
            return
        cell = (i * shape.kv_heads + head) * scratch.most
        for number in range(first_share + tl.program_id(1), end_share, active):
            start = tl.maximum(start_of(number), first)
            end = tl.minimum(start_of(number + 1), tile.end)
            share = no_sums(shape)
            for at in range(start, end, shape.block):
                share = _see_block(
                    share, queries, tile, slopes, pages, head, at, factor, rules, shape
                )
            leave(scratch, cell + number - first_share, queries, share, count, shape)
        tl.debug_barrier()  # all threads' stores before the arrival is announced
        arrivals = scratch.arrivals + i * shape.kv_heads + head
        if tl.atomic_add(arrivals, 1) != active - 1:
            return
        tl.store(arrivals, 0)
        sums = no_sums(shape)
        for number in range(0, end_share - first_share):
            sums = merged(sums, left(scratch, cell + number, queries, count, shape))
    else:
        sums, share = no_sums(shape), no_sums(shape)
        sums, share = _attend(
            sums, share, queries, tile, slopes, pages, head, first, tile.end, factor, rules, shape
        )
        sums = merged(sums, share)
    _store(out, sums, queries, head, scales, rules, shape)


def invariant_decode(
    spec: AttentionSpec,
    q: torch.Tensor,
    pages: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    scratch: ShareScratch,
    query_len: int = 1,
    scales: torch.Tensor | None = None,
) -> None:
    """Attend from each row's newest tokens; arguments as those of `paged_decode`."""
    assert query_len <= scratch.max_query_len
    num_rows = len(out) // query_len
    group = spec.num_q_heads // spec.num_kv_heads
    padded = max(MIN_DOT, triton.next_power_of_2(query_len * group))
    programs = scratch.programs(num_rows, spec.num_kv_heads)
    _launch(
        spec,
        q,
        out,
        pages,
        scales,
        _Rows(block_tables, block_tables.stride(0), seq_lens, None),
        scratch,
        grid=(num_rows * spec.num_kv_heads, programs),
        query_len=query_len,
        padded_queries=padded,
        num_warps=2 if padded <= 32 and spec.head_dim <= 128 else 4,
        num_stages=2 if spec.head_dim > 128 else 3,
    )


def invariant_prefill(
    spec: AttentionSpec,
    q: torch.Tensor,
    pages: torch.Tensor,
    tables: torch.Tensor,
    tiles: torch.Tensor,
    out: torch.Tensor,
    tiling: Tiling,
    scales: torch.Tensor | None = None,
) -> None:
    """Attend from the tiles' tokens; arguments as those of `prefill_attention`."""
    group = spec.num_q_heads // spec.num_kv_heads
    _launch(
        spec,
        q,
        out,
        pages,
        scales,
        _Rows(tables, 0, None, tiles),
        None,
        grid=(len(tiles) * spec.num_kv_heads, 1),
        query_len=0,
        padded_queries=max(tiling.queries, triton.next_power_of_2(group)),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def block_of(head_dim: int, dtype: torch.dtype) -> int:
    """The keys of a block: part of the order of sums, so the same for all tiles."""
    return 32 if head_dim > 128 or dtype == torch.float32 else 64


def _launch(
    spec: AttentionSpec,
    q: torch.Tensor,
    out: torch.Tensor,
    pages: torch.Tensor,
    scales: torch.Tensor | None,
    rows: _Rows,
    scratch: ShareScratch | None,
    *,
    grid: tuple[int, int],
    query_len: int,
    padded_queries: int,
    num_warps: int,
    num_stages: int,
) -> None:
    assert out.is_contiguous()
    shape = AttentionShape(
        kv_heads=spec.num_kv_heads,
        group=spec.num_q_heads // spec.num_kv_heads,
        query_len=query_len,
        head_dim=spec.head_dim,
        page=pages.shape[2],
        padded_queries=padded_queries,
        padded_dim=max(MIN_DOT, triton.next_power_of_2(spec.head_dim)),
        block=block_of(spec.head_dim, q.dtype),
        precision="ieee",
        is_causal=spec.is_causal,
    )
    shared = None
    if scratch is not None:
        shared = ShareRoom(scratch.sums, scratch.stats, scratch.arrivals, scratch.most)
    _invariant_kernel[grid](
        q.contiguous(),
        out,
        pages,
        scales,
        rows.tables,
        rows.stride,
        rows.seq_lens,
        rows.tiles,
        shared,
        Rules.of(spec),
        shape=shape,
        is_divided=scratch is not None and grid[1] > 1,
        num_warps=num_warps,
        num_stages=num_stages,
        **overlap_of(q),
    )
