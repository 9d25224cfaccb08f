# mypy: allow-untyped-defs, allow-incomplete-defs
"""Attention of a row's newest tokens over the paged cache: one kernel, lengths on the device.

A program takes a key head, a row and a share of the row's keys, which it reads once for all query
tokens and heads. Where a row is shared by several programs, the last of them to arrive adds up
what the others left, in the order of the shares: the sum does not depend on who came last. A lone
row's programs load their first keys and values while the kernel before still makes the queries.
The torch twin is `PlainAttention`.

Letters in comments: G query heads a key head, M = query_len * G queries (token by token, padded to
at least 16 for the matrix units), D head_dim (padded to a power of two), N keys a block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.contracts.attention import AttentionSpec
from engine.kernels.decode.product import (
    Product,
    load_key,
    load_newest,
    load_queries,
    load_value,
    rotated,
    see_newest,
)
from engine.kernels.decode.softmax import DecodeTile, add_sinks, attend, load_ahead
from engine.kernels.decode.split_keys import DecodeScratch, Shared, gather_shares, share_of
from engine.kernels.pages import (
    MIN_DOT,
    AttentionShape,
    Rules,
    cells_of,
    in_half,
    prefetch_cells,
    times_scale,
)
from sampling.device.overlap import EARLY, begin_next, begin_next_late, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, tl, triton

_EARLY = constexpr(EARLY)


class _Paged(NamedTuple):
    """The pages, tables and lengths of a batch; one kernel argument."""

    pages: torch.Tensor
    tables: torch.Tensor
    seq_lens: torch.Tensor
    scales: torch.Tensor | None


@jit
def _load_tile(q, made, row, head, seq_len, scales, shape: tl.constexpr):
    """Load the queries of a row and key head unless they are `made`, `in_half` for float8 keys."""
    m, d = tl.arange(0, shape.padded_queries), tl.arange(0, shape.padded_dim)
    inside = m < shape.query_len * shape.group
    token, heads = m // shape.group, head * shape.group + m % shape.group
    mask = inside[:, None] & (d < shape.head_dim)[None, :]
    at_token = (row * shape.query_len + token) * shape.kv_heads * shape.group
    at = (at_token + heads)[:, None] * shape.head_dim + d[None, :]
    queries = made
    if made is None:
        queries = tl.load(q + at, mask=mask, other=0.0)
    factors = tl.full((shape.padded_queries,), 1.0, tl.float32)
    if scales is not None:
        queries, factors = in_half(queries)
        factors *= tl.load(scales + head)
    return DecodeTile(queries, factors, at, mask, inside, heads, seq_len - shape.query_len + token)


@jit
def _prefetch_block(pages, table, head, start, end, shape: tl.constexpr):
    """Ask for the first block of a share's keys and values, while the queries are made.

    They were written in a step before, but for the newest, which do no harm here.
    """
    n = start + tl.arange(0, shape.block)
    block_ids = tl.load(table + n // shape.page, mask=n < end, other=0)
    prefetch_cells(pages, cells_of(block_ids, n, head, shape), shape)


@jit(
    do_not_specialize=["table_stride", "full_shares"],
    do_not_specialize_on_alignment=["positions", "slots"],  # a drafter's begin anywhere
)
def _decode_kernel(
    q,
    product,
    positions,
    slots,
    out,
    paged,
    table_stride,
    shared,
    full_shares,
    rules,
    shape: tl.constexpr,
    loads_ahead: tl.constexpr,
    overlap: tl.constexpr,
):
    begin_next(overlap)
    head, row, share = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    seq_len = tl.load(paged.seq_lens + row)
    # In the cache already. (Triton cannot compare a tuple that holds None.)
    num_keys = seq_len if positions is None else seq_len - 1
    first, per_share, active = share_of(seq_len, num_keys, full_shares, rules, shape)
    if share >= active:
        return

    table = paged.tables + row * table_stride
    start = first + share * per_share
    end = tl.minimum(start + per_share, num_keys)
    made, ahead = None, None
    if positions is not None:
        newest = load_newest(product, positions, slots, row, head, shape)
    if loads_ahead:
        ahead = load_ahead(paged, table, head, start, end, shape)
    elif overlap == _EARLY:  # noqa: SIM102  # what is left out is not compiled
        if start < end:
            _prefetch_block(paged.pages, table, head, start, end, shape)
    wait_for_last(overlap)

    if positions is not None:
        heads = load_queries(product, row, head, shape)
        key = load_key(product, row, head, share, shape)
        value = load_value(product, row, head, share, shape)
        made = rotated(product, newest.queries, heads, shape)
    tile = _load_tile(q, made, row, head, seq_len, paged.scales, shape)
    top = tl.full((shape.padded_queries,), float("-inf"), tl.float32)
    total = tl.full((shape.padded_queries,), 0.0, tl.float32)
    acc = tl.full((shape.padded_queries, shape.padded_dim), 0.0, tl.float32)
    if positions is not None:  # noqa: SIM102  # what is left out is not compiled
        if share == 0:
            own = rotated(product, newest.key, key, shape)
            top, total, acc = see_newest(own, value, newest.slot, paged, tile, head, rules, shape)
    top, total, acc = attend(
        top, total, acc, tile, paged, table, head, start, end, seq_len, rules, ahead, shape
    )

    begin_next_late(overlap)
    is_last = True
    if active > 1:
        is_last, top, total, acc = gather_shares(
            shared, row, head, share, active, tile, top, total, acc, shape
        )
    if is_last:
        _store(out, top, total, acc, tile, head, paged.scales, rules.sinks, shape)


@jit
def _store(out, top, total, acc, tile, head, scales, sinks, shape: tl.constexpr):
    """Store what the queries of a row and key head attend to."""
    if sinks is not None:
        total, acc = add_sinks(tile, top, total, acc, sinks)
    total = tl.where(total == 0.0, 1.0, total)  # padded queries
    acc = times_scale(acc, scales, shape.kv_heads + head)
    tl.store(out + tile.at, (acc / total[:, None]).to(out.dtype.element_ty), mask=tile.mask)


def paged_decode(
    spec: AttentionSpec,
    q: torch.Tensor,
    pages: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    scratch: DecodeScratch,
    query_len: int = 1,
    scales: torch.Tensor | None = None,
) -> None:
    """Attend from each row's newest tokens, token by token, to them and all before them.

    Args:
        q: [R * query_len, num_q_heads, D], the tokens of a row side by side; the fused decoder's
            is contiguous, another is copied.
        pages: one layer of a KVCache.
        block_tables: int32 [R or more, max_blocks].
        seq_lens: int32 [R or more], the newest token included; as of `AttentionInputs`.
        out: [R * query_len, num_q_heads, D], contiguous.
        query_len: tokens a row, 1 to `scratch.max_query_len`.
        scales: `KVCache.layer_scales`.
    """
    assert query_len <= scratch.max_query_len
    paged = _Paged(pages, block_tables, seq_lens, scales)
    _launch(spec, q.contiguous(), out, paged, scratch, query_len)


def paged_decode_product(
    spec: AttentionSpec,
    product: Product,
    positions: torch.Tensor,
    slots: torch.Tensor,
    pages: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    scratch: DecodeScratch,
    scales: torch.Tensor | None = None,
) -> None:
    """Turn each row's newest token, store its key and value, and attend from it.

    Args:
        positions: int64 [R], of the tokens in their rows.
        slots: int64 [R], block * page + offset where the tokens' keys and values go.
        pages, block_tables, seq_lens, out, scales: as for `paged_decode`, of one token a row.
    """
    paged = _Paged(pages, block_tables, seq_lens, scales)
    _launch(spec, product.qkv, out, paged, scratch, 1, product, positions, slots)


def _launch(
    spec: AttentionSpec,
    q: torch.Tensor,
    out: torch.Tensor,
    paged: _Paged,
    scratch: DecodeScratch,
    query_len: int,
    product: Product | None = None,
    positions: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
) -> None:
    """Launch the kernel over queries, or over the product they are made of."""
    head_dim, num_rows = spec.head_dim, len(out) // query_len
    kv_heads, page = spec.num_kv_heads, paged.pages.shape[2]
    shares = scratch.shares(num_rows, kv_heads)
    group = spec.num_q_heads // kv_heads
    padded_queries = max(MIN_DOT, triton.next_power_of_2(query_len * group))
    padded_dim = max(MIN_DOT, triton.next_power_of_2(head_dim))
    width = padded_dim * q.element_size()
    is_wide = width > 1 << 9  # shared memory has no room for as much ahead
    shape = AttentionShape(
        kv_heads=kv_heads,
        group=group,
        query_len=query_len,
        head_dim=head_dim,
        page=page,
        padded_queries=padded_queries,
        padded_dim=padded_dim,
        block=_num_keys(padded_dim, paged.pages),
        precision="ieee" if q.dtype == torch.float32 else "tf32",
        is_causal=spec.is_causal,
    )
    _decode_kernel[(kv_heads, num_rows, shares.most)](
        q,
        product,
        positions,
        slots,
        out,
        paged,
        paged.tables.stride(0),
        Shared(scratch.sums, scratch.stats, scratch.arrivals),
        shares.full,
        Rules.of(spec),
        shape=shape,
        # All keys before the newest were written in steps before. More rows would wait for room.
        loads_ahead=num_rows == 1 and positions is not None and paged.scales is None,
        num_warps=_num_warps(num_rows, padded_queries, width),
        num_stages=2 if is_wide else _num_stages(num_rows, padded_dim, paged.pages),
        **overlap_of(q, late=num_rows > 1),
    )


def _num_warps(num_rows: int, padded_queries: int, width: int) -> int:
    """Warps of a program, for heads of so many bytes.

    A lone row has programs for some processors only, each of which is a chain of instructions that
    nothing else runs between: more warps make it shorter, and of wide heads two would not have
    enough registers. On an H200 a step takes 0.80 ms for 0.85 with two of a Llama-1B, 2.31 for 2.36
    of a 30B-A3B.
    """
    if num_rows == 1:
        return 8
    return 2 if padded_queries <= 32 and width <= 1 << 9 else 4


def _num_keys(padded_dim: int, pages: torch.Tensor) -> int:
    """Keys of a block.

    Two blocks of keys and of values are on their way. Of 64 keys of 512 bytes they fill the shared
    memory of a processor, whose two warps then keep too little on their way: 136 us of heads of 256
    on an H200, where the bytes take 43.
    """
    return 32 if padded_dim * pages.element_size() > 1 << 8 else 64


def _num_stages(num_rows: int, padded_dim: int, pages: torch.Tensor) -> int:
    """Stages of the loop over keys: five are two blocks in flight, for page ids are loaded ahead.

    Programs of more than 48 KiB of shared memory get a processor with another split of its memory,
    and it is split anew only where nothing runs. So where two blocks of keys take as much, a lone
    row, whose kernels all begin early, has one in flight, and more programs (`MAX_LONE`): 0.66 ms
    a step for 0.75 for a 0.6B model on an H200, 2.59 for 2.93 for an 8B one in fp8.
    """
    is_large = padded_dim * pages.element_size() > 1 << 7
    return 4 if num_rows == 1 and is_large else 5
