# mypy: allow-untyped-defs, allow-incomplete-defs
"""Attention of rows that share their first keys, over the keys each has for itself.

What attention over the shared keys A makes of a query is its output o = sum_A 2^s v / 2^log and
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

from engine.kernels.overlap import begin_next, overlap_of, wait_for_last
from sampling.triton_support import constexpr, jit, tl, triton

TILE_QUERIES = 64
"""Heads of tokens a program takes: 32 tokens where two heads share a key head, and the least that
Hopper's matrix units multiply at once."""
BLOCK_KEYS = 32
"""Keys a turn: an item that is no longer than this takes one."""
NUM_WARPS = 4
"""Of a program up to D = 128, twice as many above: sums are M * D float32 in registers."""
NUM_STAGES = 2
"""Beyond one, keys and values go to shared memory without passing through registers."""
MIN_DOT = 16
_LOG2E = constexpr(1.4426950408889634)
_COLUMNS = constexpr(4)


def item_tiles(
    query_starts: npt.NDArray[np.int32],
    own_lens: npt.NDArray[np.int64],
    own_tables: npt.NDArray[np.int64],
    group: int,
) -> npt.NDArray[np.int64]:
    """The tiles of R rows for `item_attention`.

    Rows of a step may be of any lengths; a list of tiles has no more of them than there are, where
    a grid as long as the longest row would be empty for the most part.

    Args:
        query_starts: [R + 1]; row r brings the tokens query_starts[r]:query_starts[r + 1].
        own_lens: [R]; keys of a row that it does not share, those of its tokens included.
        own_tables: [R]; where in the flattened block tables the blocks of these keys begin.
        group: query heads a key head.

    Returns:
        int64 [num_tiles, 4]: where the row's own blocks begin; the tile's first token; how many
        tokens it has; own keys before the first.
    """
    width = max(1, TILE_QUERIES // group)
    counts = np.diff(query_starts).astype(np.int64)
    num_tiles = -(-counts // width)
    rows = np.repeat(np.arange(len(counts)), num_tiles)
    skipped = (np.arange(len(rows)) - (np.cumsum(num_tiles) - num_tiles)[rows]) * width
    columns = (
        own_tables[rows],
        query_starts[rows] + skipped,
        np.minimum(counts[rows] - skipped, width),
        (own_lens - counts)[rows] + skipped,
    )
    return np.stack(columns, axis=1)


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
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    page: tl.constexpr,
    padded_queries: tl.constexpr,
    padded_dim: tl.constexpr,
    block: tl.constexpr,
    precision: tl.constexpr,
    overlap: tl.constexpr,
):
    begin_next(overlap)
    # Programs of one tile are neighbours: their heads lie side by side in memory.
    head, tile = tl.program_id(0) % kv_heads, tl.program_id(0) // kv_heads
    wait_for_last(overlap)
    tile_ptr = tiles + tile.to(tl.int64) * _COLUMNS
    table = tables + tl.load(tile_ptr)
    first_token = tl.load(tile_ptr + 1)
    num_tokens = tl.load(tile_ptr + 2).to(tl.int32)
    num_before = tl.load(tile_ptr + 3).to(tl.int32)

    end = num_before + num_tokens
    n = tl.arange(0, block)
    # Asked for ahead of queries and outputs, which take as long to come.
    block_ids = tl.load(table + n // page, mask=n < end, other=0)

    m, d = tl.arange(0, padded_queries), tl.arange(0, padded_dim)
    token, in_head = m // group, d < head_dim
    in_tile = token < num_tokens
    mask = in_tile[:, None] & in_head[None, :]
    q_heads = ((first_token + token) * kv_heads + head) * group + m % group
    at = q_heads[:, None] * head_dim + d[None, :]
    queries = tl.load(q + at, mask=mask, other=0.0)
    top = tl.load(log + q_heads, mask=in_tile, other=0.0)
    acc = tl.load(out + at, mask=mask, other=0.0).to(tl.float32)
    total = tl.full((padded_queries,), 1.0, tl.float32)

    page_stride: tl.constexpr = 2 * page * kv_heads * head_dim
    positions = num_before + token
    for _ in range(0, end, block):  # keys past the tile's last token are not looked at
        inside = n < end
        cells = block_ids.to(tl.int64) * page_stride + (n % page * kv_heads + head) * head_dim
        key_mask = inside[None, :] & in_head[:, None]
        keys = tl.load(pages + cells[None, :] + d[:, None], mask=key_mask, other=0.0)
        values = tl.load(
            pages + page * kv_heads * head_dim + cells[:, None] + d[None, :],
            mask=inside[:, None] & in_head[None, :],
            other=0.0,
        )
        scores = tl.dot(queries, keys, input_precision=precision) * scale
        if softcap is not None:  # c * tanh(s / c)
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
        seen = n[None, :] <= positions[:, None]
        n += block
        block_ids = tl.load(table + n // page, mask=n < end, other=0)
        scores = tl.where(seen, scores * _LOG2E, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision=precision)
        top = higher
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
    """Go on, in place, from attention over shared keys to attention over all of a row's keys.

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
    _item_attention_kernel[(len(tiles) * kv_heads,)](
        out,
        log,
        q,
        pages,
        tables,
        tiles,
        scale,
        softcap,
        kv_heads=kv_heads,
        group=group,
        head_dim=head_dim,
        page=page,
        padded_queries=max(TILE_QUERIES, triton.next_power_of_2(group)),
        padded_dim=padded_dim,
        block=BLOCK_KEYS,
        precision="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=NUM_WARPS if padded_dim <= 128 else 2 * NUM_WARPS,
        num_stages=NUM_STAGES,
        **overlap_of(q),
    )
