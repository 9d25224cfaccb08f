# mypy: allow-untyped-defs, allow-incomplete-defs
"""Parts of all attention kernels: tiles of queries, keys and values in pages, capped scores.

Letters in comments: D head_dim (padded to a power of two), N keys a block, a turn's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.contracts.attention import AttentionSpec
from sampling.device.overlap import prefetch
from sampling.device.triton_support import INTERPRETED, constexpr, jit, tl

MIN_DOT = 16
"""Smallest dimension that the matrix units multiply."""
LOG2E = constexpr(1.4426950408889634)
_COLUMNS, _INTERPRETED = constexpr(4), constexpr(INTERPRETED)
_TINY = constexpr(1e-30)
_LINE = constexpr(128)  # bytes of a line of the L2 cache


class AttentionShape(NamedTuple):
    """The sizes an attention kernel is compiled for; one constant kernel argument.

    Attributes:
        group: query heads for each key head.
        query_len: query tokens of each row; where rows differ, the most of a tile, or 0.
        page: keys in a page.
        padded_queries, padded_dim: M and D of the kernel's comments.
        block: N.
        precision: of products, as `tl.dot` takes it.
        is_causal: as of `AttentionSpec`.
    """

    kv_heads: int
    group: int
    query_len: int
    head_dim: int
    page: int
    padded_queries: int
    padded_dim: int
    block: int
    precision: str
    is_causal: bool = True


def query_tiles(
    query_starts: npt.NDArray[np.int32],
    num_keys: npt.NDArray[np.int64],
    tables: npt.NDArray[np.int64],
    width: int,
) -> npt.NDArray[np.int64]:
    """Cut the query tokens of R rows into tiles of at most `width` tokens of one row.

    Rows of a step may be of any lengths; a list of tiles has no more of them than there are, where
    a grid as long as the longest row would be empty for the most part.

    Args:
        query_starts: [R + 1]; row r brings the tokens query_starts[r]:query_starts[r + 1].
        num_keys: [R]; keys that a row's tokens attend to, their own included.
        tables: [R]; where in the flattened block tables the blocks of these keys begin.

    Returns:
        int64 [num_tiles, 4]: where the row's blocks begin; the tile's first token; how many tokens
        it has; keys before the first.
    """
    counts = np.diff(query_starts).astype(np.int64)
    num_tiles = -(-counts // width)
    rows = np.repeat(np.arange(len(counts)), num_tiles)
    skipped = (np.arange(len(rows)) - (np.cumsum(num_tiles) - num_tiles)[rows]) * width
    columns = (
        tables[rows],
        query_starts[rows] + skipped,
        np.minimum(counts[rows] - skipped, width),
        (num_keys - counts)[rows] + skipped,
    )
    return np.stack(columns, axis=1)


class QueryTile(NamedTuple):
    """A row of `query_tiles`; values within a kernel."""

    table: Any  # where the blocks of its keys are
    first_token: Any
    num_tokens: Any
    num_before: Any  # keys before the first token
    end: Any  # keys up to the last


@jit
def load_tile(tables, tiles, i):
    """Load tile i of the list."""
    tile_ptr = tiles + i.to(tl.int64) * _COLUMNS
    table = tables + tl.load(tile_ptr)
    first_token = tl.load(tile_ptr + 1)
    num_tokens = tl.load(tile_ptr + 2).to(tl.int32)
    num_before = tl.load(tile_ptr + 3).to(tl.int32)
    return QueryTile(table, first_token, num_tokens, num_before, num_before + num_tokens)


@jit
def load_block_ids(tile, n, shape: tl.constexpr):
    """Load the pages of a tile's keys n [N]."""
    return tl.load(tile.table + n // shape.page, mask=n < tile.end, other=0)


class Rules(NamedTuple):
    """The features of a layer's attention, as in AttentionSpec; one kernel argument."""

    scale: float
    softcap: float | None
    window: int | None
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None

    @classmethod
    def of(cls, spec: AttentionSpec) -> Rules:
        """Those of a layer."""
        return cls(spec.scale, spec.softcap, spec.sliding_window, spec.alibi_slopes, spec.sinks)


@jit
def first_key(tile, rules, shape: tl.constexpr):
    """Where the block begins in which the first key is that a query of the tile sees."""
    first = 0
    if rules.window is not None:
        lowest = tl.maximum(tile.num_before + 1 - rules.window, 0)
        first = lowest // shape.block * shape.block
    return first


@jit
def cells_of(block_ids, n, head, shape: tl.constexpr):
    """The offsets where the head's keys n [N] begin; their pages are `block_ids`."""
    page_stride: tl.constexpr = 2 * shape.page * shape.kv_heads * shape.head_dim
    offsets = (n % shape.page * shape.kv_heads + head) * shape.head_dim
    return block_ids.to(tl.int64) * page_stride + offsets


@jit
def prefetch_cells(pages, cells, shape: tl.constexpr):
    """Ask for the keys and values at `cells` [N] to be brought to the L2 cache."""
    per_line: tl.constexpr = _LINE * 8 // pages.dtype.element_ty.primitive_bitwidth
    lines: tl.constexpr = max(shape.padded_dim // per_line, 1)
    within = tl.minimum(tl.arange(0, lines) * per_line, shape.head_dim - 1)
    to_values: tl.constexpr = shape.page * shape.kv_heads * shape.head_dim
    at = cells[:, None] + within[None, :]
    prefetch(pages + at)
    prefetch(pages + to_values + at)


@jit
def load_keys(pages, cells, inside, shape: tl.constexpr):
    """Load keys [D, N]; 0 beyond head_dim and where not `inside`."""
    d = tl.arange(0, shape.padded_dim)
    mask = inside[None, :] & (d < shape.head_dim)[:, None]
    return tl.load(pages + cells[None, :] + d[:, None], mask=mask, other=0.0)


@jit
def load_values(pages, cells, inside, shape: tl.constexpr):
    """Load values [N, D]; 0 beyond head_dim and where not `inside`."""
    d = tl.arange(0, shape.padded_dim)
    mask = inside[:, None] & (d < shape.head_dim)[None, :]
    to_values: tl.constexpr = shape.page * shape.kv_heads * shape.head_dim
    return tl.load(pages + to_values + cells[:, None] + d[None, :], mask=mask, other=0.0)


@jit
def load_key_pairs(pages, cells, inside, shape: tl.constexpr):
    """Load keys in float8 [D, N] as float16: the even dimensions and the odd ones, [D / 2, N].

    In pairs they come to the matrix units as the queries in shared memory do; of single bytes a
    thread has four dimensions side by side, and the queries are put in that order for each block.
    """
    d = tl.arange(0, shape.padded_dim // 2)
    mask = inside[None, :] & (d < shape.head_dim // 2)[:, None]
    pairs = pages.to(tl.pointer_type(tl.uint16), bitcast=True)
    return _halves(tl.load(pairs + cells[None, :] // 2 + d[:, None], mask=mask, other=0))


@jit
def load_value_pairs(pages, cells, inside, shape: tl.constexpr):
    """Load values in float8 [N, D] as float16: the even dimensions and the odd ones, [N, D / 2].

    Pairs of bytes reach the matrix units as float16 does, where single bytes are gathered one by
    one.
    """
    d = tl.arange(0, shape.padded_dim // 2)
    # (2 * d < head_dim) would not be seen to be the same for neighbours: loads of two bytes each.
    mask = inside[:, None] & (d < shape.head_dim // 2)[None, :]
    to_values: tl.constexpr = shape.page * shape.kv_heads * shape.head_dim
    pairs = pages.to(tl.pointer_type(tl.uint16), bitcast=True)
    at = (to_values + cells[:, None]) // 2 + d[None, :]
    return _halves(tl.load(pairs + at, mask=mask, other=0))


@jit
def _halves(pairs):
    """The first and the second float8 number of pairs, as float16, which holds them exactly."""
    if _INTERPRETED:
        first = (pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        second = (pairs >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        first, second = tl.inline_asm_elementwise(  # of two pairs at once
            """{
            .reg .b16 firsts, seconds;
            .reg .b32 in_order;
            prmt.b32 in_order, $2, 0, 0x3120;
            mov.b32 {firsts, seconds}, in_order;
            cvt.rn.f16x2.e4m3x2 $0, firsts;
            cvt.rn.f16x2.e4m3x2 $1, seconds;
            }""",
            "=r,=r,r",
            [pairs],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    return first, second


@jit
def in_half(queries):
    """Queries [M, D] for keys in float8: as float16, and the factors [M] they were divided by.

    It has more bits than bfloat16, and keys become it in one instruction and without rounding. A
    query is divided by a power of two, against overflow; float32 stays as it is.
    """
    powers = tl.full((queries.shape[0],), 1.0, tl.float32)
    if queries.dtype != tl.float32:
        wide = queries.to(tl.float32)
        powers = tl.exp2(tl.floor(tl.log2(tl.maximum(tl.max(tl.abs(wide), 1), _TINY))))
        queries = (wide / powers[:, None]).to(tl.float16)
    return queries, powers


@jit
def capped(scores, softcap):
    """Cap scores s to c * tanh(s / c); without a cap they stay as they are."""
    if softcap is not None:
        scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
    return scores


@jit
def times_scale(values, scales, index):
    """Multiply values by a scale of `KVCache.scales`, a power of two; None leaves them."""
    if scales is not None:
        values = (values * tl.load(scales + index)).to(values.dtype)
    return values
