# mypy: allow-untyped-defs, allow-incomplete-defs
"""The recurrence by chunks of positions: prefill.

What a chunk's equations hold that needs no state is computed for all chunks at once
(`chunk_products`). Then a program takes some rows of a head's matrix through the chunks of a row.
With S₀ the matrix before a chunk and X a chunk's tokens side by side,

    U = (V - (S₀ Kᵀ) ∘ a) Tᵀ            (delta rule; the state space has U = V)
    O = (S₀ Qᵀ) ∘ b + U Pᵀ
    S = exp(decay of the chunk) S₀ + (U ∘ c) K

with T, P, a, b and c of `chunk_products`. Where each channel of a key has its decay, a, b and c are
in the Q and K that `channel_products` made, one K for the products with S₀ and one for its sum.
Chunks lie on a grid of the row's own positions, whatever rows are beside it. Products are of
float32, on tensor cores by products of parts.
"""

from __future__ import annotations

import torch

from engine.kernels.recurrent.channel_products import channel_products
from engine.kernels.recurrent.chunk_products import ChunkProducts, chunk_products, first_chunk
from engine.kernels.recurrent.matrices import CHUNK, Matrices, Rule, TokenInputs
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

STAGES = constexpr(2)
"""Chunks whose inputs are in flight."""


@jit
def _parts(x):
    """Three bfloat16 tensors that sum to x, float32, up to its last digit."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@jit
def _dot_of_parts(a, b):
    """a b of float32, by the six products of parts that float32 can tell from nothing."""
    high, middle, low = _parts(a)
    b_high, b_middle, b_low = _parts(b)
    product = tl.dot(high, b_low, tl.dot(middle, b_middle, tl.dot(low, b_high)))
    return tl.dot(high, b_high, tl.dot(high, b_middle, tl.dot(middle, b_high, product)))


@jit
def _dot(a, b, by_channel: tl.constexpr):
    """a b of float32, as b is or where b is bfloat16.

    By parts of bfloat16, whose layout as a product's result is the one it needs as a factor; what
    is small is summed first. Decayed keys by parts too: TF32's need twice the registers.
    """
    if by_channel:
        product = _dot_of_parts(a, b)
    elif b.dtype == tl.bfloat16:
        high, middle, low = _parts(a)
        product = tl.dot(high, b, tl.dot(middle, b, tl.dot(low, b)))
    else:
        product = tl.dot(a, b, input_precision="tf32x3")
    return product


@jit
def _load(inputs, strides, token, inside, key_head, keys, sizes: tl.constexpr):
    """A chunk's q and k [C, K], 0 outside. Parts can hold float16's as float32."""
    channels = inside[:, None] & (keys < sizes.k)
    q_ptr = inputs.q + token[:, None] * strides[0] + key_head * sizes.k + keys
    k_ptr = inputs.k + token[:, None] * strides[1] + key_head * sizes.k + keys
    q = tl.load(q_ptr, mask=channels, other=0.0)
    k = tl.load(k_ptr, mask=channels, other=0.0)
    if k.dtype == tl.float16:
        q, k = q.to(tl.float32), k.to(tl.float32)
    return q, k


@jit
def _load_squares(products, of, CHUNK: tl.constexpr):  # noqa: N803
    """A chunk's T and P [C, C]."""
    lanes = tl.arange(0, CHUNK)
    square = products.squares + of * 2 * CHUNK * CHUNK + lanes[:, None] * CHUNK + lanes[None, :]
    return tl.load(square), tl.load(square + CHUNK * CHUNK)


@jit
def _load_lines(products, of, CHUNK: tl.constexpr):  # noqa: N803
    """A chunk's a, b, c [1, C] and the exponential of its decay."""
    line = products.lines + of * 4 * CHUNK + tl.arange(0, CHUNK)[None, :]
    a, b, c = tl.load(line), tl.load(line + CHUNK), tl.load(line + 2 * CHUNK)
    return a, b, c, tl.load(products.lines + of * 4 * CHUNK + 3 * CHUNK)


@jit
def _load_decayed(products, of, keys, sizes: tl.constexpr, CHUNK: tl.constexpr):  # noqa: N803
    """A chunk's decayed Q, K, K [C, K] and the exponential of its decays [1, K]."""
    lanes = tl.arange(0, CHUNK)[:, None]
    line = products.decayed + of * (3 * CHUNK + 1) * sizes.k + keys
    q = tl.load(line + lanes * sizes.k, mask=keys < sizes.k, other=0.0)
    k = tl.load(line + (CHUNK + lanes) * sizes.k, mask=keys < sizes.k, other=0.0)
    kept = tl.load(line + (2 * CHUNK + lanes) * sizes.k, mask=keys < sizes.k, other=0.0)
    return q, k, kept, tl.load(line + 3 * CHUNK * sizes.k, mask=keys < sizes.k, other=0.0)


@jit
def _scan_kernel(
    inputs,
    strides,
    products,
    memory,
    rows,
    skip_ptr,
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
    lanes = tl.arange(0, CHUNK)
    key_head = head // (sizes.heads // sizes.key_heads)
    wait_for_last(overlap)
    slot = tl.load(rows.slots + row).to(tl.int64)
    start = tl.load(rows.starts + row).to(tl.int64)
    finish = tl.load(rows.starts + row + 1) - start
    source, since, begin, ends, slots = load_row(rows, row, sizes)
    if slot != _NULL:
        state = load_state(memory, source, begin, head, 0, keys, lanes_v, sizes)
        state = replay(
            state, memory, source, since, begin, ends, slots, head, 0, keys, lanes_v, sizes
        )
        finish += begin
        first = begin // CHUNK
        at = first_chunk(start, row, CHUNK)
        for chunk in tl.range(first, (finish + CHUNK - 1) // CHUNK, num_stages=STAGES):
            position = chunk * CHUNK + lanes
            inside = (position >= begin) & (position < finish)
            token = start + position - begin
            of = (at + chunk - first) * sizes.heads + head
            v_ptr = inputs.v + token[None, :] * strides[2] + head * sizes.v + values
            v = tl.load(v_ptr, mask=inside[None, :] & (values < sizes.v), other=0.0)
            if sizes.by_channel:
                a, b, c = 1.0, 1.0, 1.0
                q, k, kept, total = _load_decayed(products, of, keys, sizes, CHUNK)
            else:
                q, k = _load(inputs, strides, token, inside, key_head, keys, sizes)
                kept = k
                a, b, c, total = _load_lines(products, of, CHUNK)
            solved, seen = _load_squares(products, of, CHUNK)
            new = v.to(tl.float32)
            if sizes.delta:
                new -= _dot(state, tl.trans(k), sizes.by_channel) * a
                new = _dot_of_parts(new, tl.trans(solved))
            out = _dot(state, tl.trans(q), sizes.by_channel) * b
            out += _dot_of_parts(new, tl.trans(seen))
            if sizes.has_skip:
                out += tl.load(skip_ptr + head) * v.to(tl.float32)
            address = out_ptr + (token[None, :] * sizes.heads + head) * sizes.v + values
            mask = inside[None, :] & (values < sizes.v)
            tl.store(address, out.to(out_ptr.dtype.element_ty), mask=mask)
            state = state * total + _dot(new * c, kept, sizes.by_channel)
            end = tl.minimum((chunk + 1) * CHUNK, finish)
            snapshot(state, memory, ends, slots, end, head, 0, keys, lanes_v, sizes)
        store_state(state, memory, slot, head, 0, keys, lanes_v, sizes)
    else:
        for at in range(0, finish, CHUNK):
            token = start + at + lanes
            address = out_ptr + (token[None, :] * sizes.heads + head) * sizes.v + values
            mask = (token < start + finish)[None, :] & (values < sizes.v)
            tl.store(address, tl.zeros([BLOCK_V, CHUNK], out_ptr.dtype.element_ty), mask=mask)


def recurrence_chunked(
    inputs: TokenInputs,
    rule: Rule,
    memory: Matrices,
    rows: StateRows,
    extent: Extent,
    skip: torch.Tensor | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `recurrence` of rows whose tokens are all kept, in two kernels."""
    assert extent.num_certain is None
    sizes = sizes_of(inputs, rule, memory, rows.snapshot_ends.shape[1], skip is not None)
    if out is None:
        out = torch.empty(inputs.v.shape, dtype=inputs.v.dtype, device=inputs.v.device)
    assert out.is_contiguous()
    made = channel_products if sizes.by_channel else chunk_products
    _scan(inputs, made(inputs, rule, rows, sizes), memory, rows, skip, out, sizes)
    return out


def _scan(
    inputs: TokenInputs,
    products: ChunkProducts,
    memory: Matrices,
    rows: StateRows,
    skip: torch.Tensor | None,
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
        skip,
        out,
        sizes=sizes,
        CHUNK=CHUNK,
        BLOCK_K=max(16, padded_lanes(sizes.k)),
        BLOCK_V=block_v,
        num_warps=block_v // VALUES_OF_A_WARP,
        **overlap_of(out),
    )
