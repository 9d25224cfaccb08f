# mypy: allow-untyped-defs, allow-incomplete-defs
"""Attention of rows that share their first keys, continued over the keys of each row alone.

For a query, attention over the shared keys A gives the output o = sum_A 2^s v / 2^log and
log = log2 sum_A 2^s, with scores s in units of log2. An online softmax that has seen A holds the
sum of weights sum_A 2^(s - t) and the weighted values sum_A 2^(s - t) v against some t. With
t = log these are 1 and o, and no score of A is above t. So a softmax that begins with (log, 1, o)
and goes on over the row's own keys B ends with

    (o 2^log + sum_B 2^s v) / (2^log + sum_B 2^s) = sum_(A and B) 2^s v / sum_(A and B) 2^s,

the attention over all of the row's keys, with nothing kept between the two but o and log.

A program takes a key head and a tile: some of a row's query tokens with all query heads of that key
head, so that keys are read once for them. It is memory that bounds it: a short row's queries,
outputs, keys and values are touched once, and each makes few products.

Letters in comments: G query heads a key head, M queries of a tile (token by token, padded), D
head_dim (padded to a power of two), N keys a block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine.kernels.pages import (
    LOG2E,
    MIN_DOT,
    AttentionShape,
    capped,
    cells_of,
    load_block_ids,
    load_keys,
    load_tile,
    load_values,
    query_tiles,
)
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

TILE_QUERIES = 64
"""Number of queries of a tile: 32 tokens where two query heads share a key head. It is the least
that Hopper's matrix units multiply at once."""
BLOCK_KEYS = 32
"""Number of keys of a turn of the loop: an item no longer than this takes one turn."""
NUM_WARPS = 4
"""Warps of a program up to D = 128, twice as many above: sums are M * D float32 in registers."""
NUM_STAGES = 2
"""Stages of the loop; beyond one, keys and values reach shared memory without passing registers."""


def item_tiles(
    query_starts: npt.NDArray[np.int32],
    own_lens: npt.NDArray[np.int64],
    own_tables: npt.NDArray[np.int64],
    group: int,
) -> npt.NDArray[np.int64]:
    """The tiles of R rows for `item_attention`, as `query_tiles` makes them.

    Args:
        query_starts: [R + 1]; row r brings the tokens query_starts[r]:query_starts[r + 1].
        own_lens: [R]; keys of a row that it does not share, those of its tokens included.
        own_tables: [R]; where in the flattened block tables the blocks of these keys begin.
        group: query heads a key head.
    """
    return query_tiles(query_starts, own_lens, own_tables, max(1, TILE_QUERIES // group))


@jit
def _go_on(top, acc, queries, tile, block_ids, pages, head, scale, softcap, shape: tl.constexpr):
    """Extend the sum of weights and the weighted values from the shared keys to all keys.

    Args:
        top: [M], log2 of the sum of the shared keys' weights.
        acc: [M, D], what attention over them gave.
        block_ids: [N], pages of the first keys.
    """
    n = tl.arange(0, shape.block)
    positions = tile.num_before + tl.arange(0, shape.padded_queries) // shape.group
    total = tl.full((shape.padded_queries,), 1.0, tl.float32)
    for _ in range(0, tile.end, shape.block):  # keys past the tile's last token are not looked at
        inside = n < tile.end
        cells = cells_of(block_ids, n, head, shape)
        keys = load_keys(pages, cells, inside, shape)
        values = load_values(pages, cells, inside, shape)
        scores = tl.dot(queries, keys, input_precision=shape.precision) * scale
        scores = capped(scores, softcap)
        seen = n[None, :] <= positions[:, None]
        n += shape.block
        block_ids = load_block_ids(tile, n, shape)
        scores = tl.where(seen, scores * LOG2E, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision=shape.precision)
        top = higher
    return total, acc


@jit
def _item_attention_kernel(
    out,
    log,
    q,
    pages,
    tables,
    tiles,
    scale,
    softcap,
    shape: tl.constexpr,
    overlap: tl.constexpr,
):
    begin_next(overlap)
    # Programs of one tile are neighbours: their heads lie side by side in memory.
    head, i = tl.program_id(0) % shape.kv_heads, tl.program_id(0) // shape.kv_heads
    wait_for_last(overlap)
    tile = load_tile(tables, tiles, i)
    # Asked for ahead of queries and outputs, which take as long to come.
    block_ids = load_block_ids(tile, tl.arange(0, shape.block), shape)

    m, d = tl.arange(0, shape.padded_queries), tl.arange(0, shape.padded_dim)
    token = m // shape.group
    in_tile = token < tile.num_tokens
    mask = in_tile[:, None] & (d < shape.head_dim)[None, :]
    q_heads = (tile.first_token + token) * shape.kv_heads + head
    q_heads = q_heads * shape.group + m % shape.group
    at = q_heads[:, None] * shape.head_dim + d[None, :]
    queries = tl.load(q + at, mask=mask, other=0.0)
    top = tl.load(log + q_heads, mask=in_tile, other=0.0)
    acc = tl.load(out + at, mask=mask, other=0.0).to(tl.float32)
    total, acc = _go_on(top, acc, queries, tile, block_ids, pages, head, scale, softcap, shape)
    tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty), mask=mask)


def item_attention(
    out: torch.Tensor,
    log: torch.Tensor,
    q: torch.Tensor,
    pages: torch.Tensor,
    tables: torch.Tensor,
    tiles: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> None:
    """Turn attention over shared keys into attention over all of a row's keys, in place.

    Args:
        out: [T, num_q_heads, D], contiguous; attention of the tiles' tokens over the shared keys.
        log: float32 [T, num_q_heads], contiguous; log2 of the sum over them of 2^(score * log2(e)),
            scores scaled and capped. -inf where there are none, and `out` finite.
        q: as `out`.
        pages: one layer of a KVCache.
        tables: int32, contiguous block tables, whose rows' own blocks `tiles` tells.
        tiles: `item_tiles` of T tokens, on the device.
    """
    assert out.is_contiguous()
    assert log.is_contiguous()
    assert q.is_contiguous()
    assert tables.is_contiguous()
    head_dim, kv_heads, page = q.shape[2], pages.shape[3], pages.shape[2]
    group = q.shape[1] // kv_heads
    padded_dim = max(MIN_DOT, triton.next_power_of_2(head_dim))
    shape = AttentionShape(
        kv_heads=kv_heads,
        group=group,
        query_len=0,
        head_dim=head_dim,
        page=page,
        padded_queries=max(TILE_QUERIES, triton.next_power_of_2(group)),
        padded_dim=padded_dim,
        block=BLOCK_KEYS,
        precision="ieee" if q.dtype == torch.float32 else "tf32",
    )
    _item_attention_kernel[(len(tiles) * kv_heads,)](
        out,
        log,
        q,
        pages,
        tables,
        tiles,
        scale,
        softcap,
        shape=shape,
        num_warps=NUM_WARPS if padded_dim <= 128 else 2 * NUM_WARPS,
        num_stages=NUM_STAGES,
        **overlap_of(q),
    )
