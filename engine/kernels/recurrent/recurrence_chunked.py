# mypy: allow-untyped-defs, allow-incomplete-defs
"""The recurrence by chunks of positions: prefill.

What a chunk's equations hold that needs no state is computed for all chunks at once
(`chunk_products`). Then a program takes some rows of a head's matrix through the chunks of a row.
With S₀ the matrix before a chunk and X a chunk's tokens side by side,

    R = V - (S₀ Kᵀ) ∘ a,  U = R Tᵀ      (delta rule; the state space has R = V and U = V ∘ c)
    O = (S₀ Qᵀ) ∘ b + R Pᵀ
    S = exp(decay of the chunk) S₀ + U K

with T, P, a, b and c of `chunk_products`. S₀ and R are each multiplied once: by K and Q, and by T
and P, whose rows lie by turns. Where each channel of a key has its decay, a, b and c are in the Q
and K that `channel_products` made, one K for the products with S₀ and one for its sum. Chunks lie
on a grid of the row's own positions, whatever rows are beside it. Products are of float32, see
`float32_products`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from engine.kernels.recurrent.channel_products import channel_products
from engine.kernels.recurrent.chunk_products import ChunkProducts, chunk_products, first_chunk
from engine.kernels.recurrent.float32_products import dot, short_dot
from engine.kernels.recurrent.matrices import CHUNK, HeadWeights, Matrices, Rule, TokenInputs
from engine.kernels.recurrent.token_steps import (
    Sizes,
    load_row,
    load_state,
    replay,
    sizes_of,
    snapshot,
    store_state,
)
from engine.memory.state_rows import NULL_SLOT, Extent, StateRows
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl, triton

VALUES = 64
"""The most rows of a head's matrix that a program holds; half of the matrix, if those are fewer,
so that two programs share a head of a lone row (measured on an H100)."""

VALUES_OF_A_WARP = 16
"""So that all of a row's products are sums of one warp, which waits for no other."""

_NULL = constexpr(NULL_SLOT)

DELTA_STAGES, SPACE_STAGES = constexpr(1), constexpr(2)
"""Chunks whose inputs are in flight: what a chunk of the delta rule needs fills the registers."""


@jit
def _apart(x, CHUNK: tl.constexpr):  # noqa: N803
    """The two [V, C] whose columns x [V, 2 C] has by turns."""
    return tl.split(tl.reshape(x, (x.shape[0], CHUNK, 2)))


@jit
def _load_rows(row_ptr, inside, keys, sizes: tl.constexpr):
    """A head's q or k [N, K] of tokens' [N], 0 outside. Parts can hold float16's as float32."""
    mask = inside[:, None]
    if keys.shape[1] != sizes.k:
        mask &= keys < sizes.k
    x = tl.load(row_ptr[:, None] + keys, mask=mask, other=0.0)
    if x.dtype == tl.float16:
        x = x.to(tl.float32)
    return x


@jit
def _load_decayed(line, keys, sizes: tl.constexpr, CHUNK: tl.constexpr):  # noqa: N803
    """A chunk's decayed K and Q by turns [2 C, K], K [C, K] and its decays' exponential [1, K]."""
    turns, lanes = tl.arange(0, 2 * CHUNK), tl.arange(0, CHUNK)
    row = (turns + 1) % 2 * CHUNK + turns // 2
    read = _load_rows(line + row * sizes.k, turns >= 0, keys, sizes)
    kept = _load_rows(line + (2 * CHUNK + lanes) * sizes.k, lanes >= 0, keys, sizes)
    return read, kept, tl.load(line + 3 * CHUNK * sizes.k + keys, mask=keys < sizes.k, other=0.0)


@jit
def _load_squares(squares, sizes: tl.constexpr, CHUNK: tl.constexpr):  # noqa: N803
    """The rows of a chunk's T and P by turns [2 C, C]; of the state space P [C, C]."""
    if sizes.delta:
        turns = tl.arange(0, 2 * CHUNK)[:, None]
        row = turns % 2 * CHUNK + turns // 2
    else:
        row = CHUNK + tl.arange(0, CHUNK)[:, None]
    return tl.load(squares + row * CHUNK + tl.arange(0, CHUNK)[None, :])


class _Chunk(NamedTuple):
    """What a chunk is computed from; values within the kernel.

    Attributes:
        read: K and Q by turns [2 C, K], or Q [C, K]. factors: a and b by turns [1, 2 C], or b.
        kept: K [C, K]. last: c [1, C], where T does not have it. total: the decay's exponential.
        squares: T and P by turns [2 C, C], or P [C, C].
    """

    read: Any
    factors: Any
    kept: Any
    last: Any
    total: Any
    squares: Any


@jit
def _load_chunk(
    q_ptr,
    k_ptr,
    strides,
    products,
    of,
    at,
    count,
    keys,
    sizes: tl.constexpr,
    CHUNK: tl.constexpr,  # noqa: N803
):
    """Load the chunk whose tokens are from `at` of a row's; q and k begin with the row's head."""
    lanes, turns = tl.arange(0, CHUNK), tl.arange(0, 2 * CHUNK)
    squares = _load_squares(products.squares + of * 2 * CHUNK * CHUNK, sizes, CHUNK)
    factors, last = 1.0, 1.0
    if sizes.by_channel:
        line = products.decayed + of * (3 * CHUNK + 1) * sizes.k
        read, kept, total = _load_decayed(line, keys, sizes, CHUNK)
    else:
        line = products.lines + of * 4 * CHUNK
        total = tl.load(line + 3 * CHUNK)
        own = at + lanes
        inside = (own >= 0) & (own < count)
        kept = _load_rows(k_ptr + own * strides[1], inside, keys, sizes)
        if sizes.delta:
            own = at + turns // 2
            row_ptr = tl.where(turns % 2 == 0, k_ptr + own * strides[1], q_ptr + own * strides[0])
            read = _load_rows(row_ptr, (own >= 0) & (own < count), keys, sizes)
            factors = tl.load(line + turns[None, :])
        else:
            read = _load_rows(q_ptr + own * strides[0], inside, keys, sizes)
            factors = tl.load(line + 2 * lanes[None, :] + 1)
            last = tl.load(line + 2 * CHUNK + lanes[None, :])
    return _Chunk(read, factors, kept, last, total, squares)


@jit
def _advance(state, chunk, v, sizes: tl.constexpr, CHUNK: tl.constexpr):  # noqa: N803
    """The matrix after a chunk, and what its tokens read [V, C]."""
    new = v.to(tl.float32)
    read = dot(state, tl.trans(chunk.read), sizes.by_channel) * chunk.factors
    if sizes.delta:
        known, read = _apart(read, CHUNK)
        new, seen = _apart(short_dot(new - known, chunk.squares), CHUNK)
    else:
        seen = short_dot(new, chunk.squares)
        new *= chunk.last
    state = state * chunk.total + dot(new, chunk.kept, sizes.by_channel)
    return state, read + seen


@jit
def _scan_kernel(
    inputs,
    strides,
    products,
    memory,
    rows,
    weights,
    out_ptr,
    sizes: tl.constexpr,
    CHUNK: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    BLOCK_V: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes BLOCK_V rows of a head's matrix, of a row."""
    begin_next(overlap)
    row, head = tl.program_id(0), tl.program_id(1)
    keys = tl.arange(0, BLOCK_K)[None, :]
    lanes_v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    values = lanes_v[:, None]
    lanes = tl.arange(0, CHUNK)[None, :]
    key_head = head // (sizes.heads // sizes.key_heads)
    wait_for_last(overlap)
    slot = tl.load(rows.slots + row).to(tl.int64)
    start = tl.load(rows.starts + row).to(tl.int64)
    count = tl.load(rows.starts + row + 1) - start.to(tl.int32)
    source, since, begin, ends, slots = load_row(rows, row, sizes)
    out_ptr += (start * sizes.heads + head) * sizes.v
    if slot != _NULL:
        state = load_state(memory, source, begin, head, 0, keys, lanes_v, sizes)
        state = replay(
            state, memory, source, since, begin, ends, slots, head, 0, keys, lanes_v, sizes
        )
        q_ptr = inputs.q + start * strides[0] + key_head * sizes.k
        k_ptr = inputs.k + start * strides[1] + key_head * sizes.k
        v_ptr = inputs.v + start * strides[2] + head * sizes.v
        before = (begin % CHUNK).to(tl.int32)
        first = first_chunk(start, row, CHUNK)
        stages: tl.constexpr = DELTA_STAGES if sizes.delta else SPACE_STAGES
        for i in tl.range(0, (before + count + CHUNK - 1) // CHUNK, num_stages=stages):
            at = i * CHUNK - before
            token = at + lanes
            mask = (token >= 0) & (token < count) & (values < sizes.v)
            v = tl.load(v_ptr + token * strides[2] + values, mask=mask, other=0.0)
            of = (first + i) * sizes.heads + head
            chunk = _load_chunk(q_ptr, k_ptr, strides, products, of, at, count, keys, sizes, CHUNK)
            state, out = _advance(state, chunk, v, sizes, CHUNK)
            if sizes.has_skip:
                out += tl.load(weights.skip + head) * v.to(tl.float32)
            to = token * (sizes.heads * sizes.v) + values
            tl.store(out_ptr + to, out.to(out_ptr.dtype.element_ty), mask=mask)
            end = begin + tl.minimum(at + CHUNK, count)
            snapshot(state, memory, ends, slots, end, head, 0, keys, lanes_v, sizes)
        store_state(state, memory, slot, head, 0, keys, lanes_v, sizes)
    else:
        for at in range(0, count, CHUNK):
            token = at + lanes
            to = token * (sizes.heads * sizes.v) + values
            mask = (token < count) & (values < sizes.v)
            tl.store(out_ptr + to, tl.zeros([BLOCK_V, CHUNK], out_ptr.dtype.element_ty), mask=mask)


def recurrence_chunked(
    inputs: TokenInputs,
    rule: Rule,
    weights: HeadWeights,
    memory: Matrices,
    rows: StateRows,
    extent: Extent,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `recurrence` of rows whose tokens are all kept, in two kernels."""
    assert extent.num_certain is None
    sizes = sizes_of(inputs, rule, weights, memory, rows.snapshot_ends.shape[1])
    if out is None:
        out = torch.empty(inputs.v.shape, dtype=inputs.v.dtype, device=inputs.v.device)
    assert out.is_contiguous()
    made = channel_products if sizes.by_channel else chunk_products
    products = made(inputs, rule, weights, rows, sizes)
    _scan(inputs, products, weights, memory, rows, out, sizes)
    return out


def _scan(
    inputs: TokenInputs,
    products: ChunkProducts,
    weights: HeadWeights,
    memory: Matrices,
    rows: StateRows,
    out: torch.Tensor,
    sizes: Sizes,
) -> None:
    block_v = max(VALUES_OF_A_WARP, min(VALUES, triton.next_power_of_2(sizes.v) // 2))
    _scan_kernel[(len(rows.slots), sizes.heads, triton.cdiv(sizes.v, block_v))](
        inputs,
        tuple(each.stride(0) for each in inputs[:3]),
        products,
        memory,
        rows,
        weights,
        out,
        sizes=sizes,
        CHUNK=CHUNK,
        BLOCK_K=max(16, padded_lanes(sizes.k)),
        BLOCK_V=block_v,
        num_warps=block_v // VALUES_OF_A_WARP,
        **overlap_of(out),
    )
