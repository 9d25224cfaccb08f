# mypy: allow-untyped-defs, allow-incomplete-defs
"""Compute for every chunk of the recurrence at once what needs no state.

Of a chunk's tokens, with D[i, j] the sum of the decays after token j up to i, norms 1 where the
rule is not the delta rule:

    B[i, j] = scale exp(D[i, j]) (q[i] · k[j]) / (|q[i]| |k[j]|)            of j ≤ i
    A[i, j] = beta[i] exp(D[i, j]) (k[i] · k[j]) / (|k[i]| |k[j]|)          of j < i
    T = diag(c) (I + A)⁻¹ diag(beta),  P = B (I + A)⁻¹ diag(beta)

and, to be multiplied with products of the state, a[i] = exp(D[i]) / |k[i]|,
b[i] = scale exp(D[i]) / |q[i]| and c[i] = exp(D[last, i]) / |k[i]|. The state space has no
equations to solve, P = B diag(beta), and beta in c.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.recurrent.gates import gates, load_rate
from engine.kernels.recurrent.matrices import CHUNK, HeadWeights, Rule, TokenInputs
from engine.kernels.recurrent.reference import NORM_EPS
from engine.kernels.recurrent.token_steps import Sizes
from engine.kernels.recurrent.tuples import appended, value_at
from engine.memory.state_rows import NULL_SLOT, StateRows
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl

ROWS_A_LOOK = constexpr(128)
"""Rows whose first chunks are compared with a program's at once."""

ENOUGH = 2112
"""The programs of all heads of a key head that there are at least: sixteen for each processor of an
H200. Of fewer chunks every head has its own."""
REGISTERS = 128
"""Of their threads: with the 236 that they could use, too few programs run at once."""

_NULL = constexpr(NULL_SLOT)
_EPS = constexpr(NORM_EPS)


class ChunkProducts(NamedTuple):
    """What N chunks hold, float32.

    A row's chunks begin at `first_chunk`; what lies between rows is not written.

    Attributes:
        squares: [N, H, 2, C, C], T and P.
        lines: [N, H, 4 C], of decays a head: a and b by turns, c of the state space, and the
            exponential of the chunk's decay, C times.
        decayed: [N, H, 3 C + 1, K], of decays a channel, see `channel_products`.
    """

    squares: torch.Tensor
    lines: torch.Tensor | None
    decayed: torch.Tensor | None


@jit
def first_chunk(start, row, CHUNK: tl.constexpr):  # noqa: N803
    """Where a row's chunks begin: a row of n tokens has at most n / CHUNK + 31 / 16 of them."""
    return start // CHUNK + 2 * row


@jit
def _row_of(starts, num_rows, at, CHUNK: tl.constexpr):  # noqa: N803
    """The row whose chunks begin last, at `at` or before; -1 before the first row's."""
    row = -1
    for first in range(0, num_rows, ROWS_A_LOOK):
        rows = first + tl.arange(0, ROWS_A_LOOK)
        start = tl.load(starts + rows, mask=rows < num_rows, other=1 << 30)
        row += tl.sum((first_chunk(start, rows, CHUNK) <= at).to(tl.int32), 0)
    return row


@jit
def chunk_at(rows, num_rows, at, CHUNK: tl.constexpr):  # noqa: N803
    """Chunk `at`: its first position, its row's first token, first position and end, and whether it
    is computed."""
    row = tl.maximum(_row_of(rows.starts, num_rows, at, CHUNK), 0)
    start = tl.load(rows.starts + row).to(tl.int64)
    begin = tl.load(rows.begins + row)
    finish = begin + tl.load(rows.starts + row + 1) - start
    chunk = begin // CHUNK + at - first_chunk(start, row, CHUNK)
    is_skipped = (tl.load(rows.slots + row) == _NULL) | (at < first_chunk(start, row, CHUNK))
    return chunk * CHUNK, start, begin, finish, (chunk * CHUNK < finish) & (not is_skipped)


@jit
def solve(squares, system, seen, beta, c, CHUNK: tl.constexpr):  # noqa: N803
    """Write T and P of A, `system` [C, C], and B, `seen`; without c where that is None.

    (I + A)⁻¹ is found row by row: row i is that of I less the rows before it, times what A has of
    them. A lane has a column of each, so that no numbers of lanes are summed, and reads A from
    where T will be.
    """
    lanes = tl.arange(0, CHUNK)
    square = squares + lanes[:, None] * CHUNK + lanes[None, :]
    tl.store(square, system)
    tl.debug_barrier()
    rows = ()
    for i in tl.static_range(CHUNK):
        row = tl.where(lanes == i, 1.0, 0.0)
        for before in tl.static_range(i):
            row -= tl.load(squares + i * CHUNK + before) * value_at(rows, before)
        rows = appended(rows, row)
    tl.debug_barrier()
    for i in tl.static_range(CHUNK):
        tl.store(squares + i * CHUNK + lanes, value_at(rows, i) * beta)
    tl.debug_barrier()
    solved = tl.load(square)
    tl.store(square + CHUNK * CHUNK, tl.dot(seen, solved, input_precision="tf32x3"))
    if c is not None:
        tl.debug_barrier()
        tl.store(square, solved * c[:, None])


@jit
def _keys_products(
    inputs,
    strides,
    token,
    inside,
    key_head,
    sizes: tl.constexpr,
    CHUNK: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
):
    """Products of a chunk's q and k with its k [C, C], and their norms' inverses [C].

    Values of bfloat16 and float16 are TF32's too; float32 takes three products.
    """
    precision: tl.constexpr = "tf32x3" if inputs.k.dtype.element_ty == tl.float32 else "tf32"
    pieces: tl.constexpr = 32 if BLOCK_K > 32 else BLOCK_K
    seen = tl.zeros([CHUNK, CHUNK], tl.float32)
    system = tl.zeros([CHUNK, CHUNK], tl.float32)
    q_square, k_square = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    for first in range(0, sizes.k, pieces):
        keys = first + tl.arange(0, pieces)[None, :]
        channels = inside[:, None] & (keys < sizes.k)
        q_ptr = inputs.q + token[:, None] * strides[0] + key_head * sizes.k + keys
        k_ptr = inputs.k + token[:, None] * strides[1] + key_head * sizes.k + keys
        q = tl.load(q_ptr, mask=channels, other=0.0).to(tl.float32)
        k = tl.load(k_ptr, mask=channels, other=0.0).to(tl.float32)
        seen = tl.dot(q, tl.trans(k), seen, input_precision=precision)
        if sizes.delta:
            system = tl.dot(k, tl.trans(k), system, input_precision=precision)
            q_square += tl.sum(q * q, 1)
            k_square += tl.sum(k * k, 1)
    return seen, system, tl.rsqrt(q_square + _EPS), tl.rsqrt(k_square + _EPS)


@jit
def _head_products(
    inputs,
    strides,
    products,
    rate,
    bias,
    numbers,
    at,
    head,
    token,
    inside,
    keyed,
    sizes: tl.constexpr,
    CHUNK: tl.constexpr,  # noqa: N803
):
    """Write what a chunk of a head holds; `keyed` is of its key head, by `_keys_products`."""
    seen, system, q_norm, k_norm = keyed
    lanes = tl.arange(0, CHUNK)
    a = tl.load(inputs.a + token * strides[3] + head, mask=inside, other=0.0)
    b = tl.load(inputs.b + token * strides[4] + head, mask=inside, other=0.0)
    decay, beta = gates(a, b, rate, bias, numbers, sizes.delta)
    decay, beta = tl.where(inside, decay, 0.0), tl.where(inside, beta, 0.0)
    # Summed by segment: a difference of sums loses what is small beside what is large.
    is_before = lanes[:, None] > lanes[None, :]
    decays = tl.exp(tl.cumsum(tl.where(is_before, decay[:, None], 0.0), 0))
    since_begin = tl.exp(tl.cumsum(decay, 0))
    until_end = tl.sum(tl.where(lanes[:, None] == CHUNK - 1, decays, 0.0), 0)
    of = (at * sizes.heads + head).to(tl.int64)
    squares = products.squares + of * 2 * CHUNK * CHUNK
    line = products.lines + of * 4 * CHUNK
    seen *= numbers.scale * tl.where(lanes[:, None] >= lanes[None, :], decays, 0.0)
    if sizes.delta:
        system *= (beta * k_norm)[:, None] * k_norm[None, :] * decays
        system = tl.where(is_before, system, 0.0)
        seen *= q_norm[:, None] * k_norm[None, :]
        tl.store(line + 2 * lanes, since_begin * k_norm)
        since_begin *= q_norm
        solve(squares, system, seen, beta, until_end * k_norm, CHUNK)
    else:
        square = squares + CHUNK * CHUNK + lanes[:, None] * CHUNK + lanes[None, :]
        tl.store(square, seen * beta[None, :])
        tl.store(line + 2 * CHUNK + lanes, until_end * beta)
    tl.store(line + 2 * lanes + 1, since_begin * numbers.scale)
    tl.store(line + 3 * CHUNK + lanes, tl.exp(tl.sum(decay, 0)) + 0.0 * decay)


@jit(do_not_specialize=["num_rows"])
def _products_kernel(
    inputs,
    strides,
    products,
    rows,
    num_rows,
    weights,
    numbers,
    sizes: tl.constexpr,
    CHUNK: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    HEADS: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes a chunk of HEADS heads, which have one key head."""
    begin_next(overlap)
    at, head, lanes = tl.program_id(0), tl.program_id(1) * HEADS, tl.arange(0, CHUNK)
    rate, bias = load_rate(weights, head, lanes, sizes)
    wait_for_last(overlap)
    first, start, begin, finish, is_computed = chunk_at(rows, num_rows, at, CHUNK)
    if is_computed:
        position = first + lanes
        inside = (position >= begin) & (position < finish)
        token, key_head = start + position - begin, head // (sizes.heads // sizes.key_heads)
        keyed = _keys_products(inputs, strides, token, inside, key_head, sizes, CHUNK, BLOCK_K)
        for of in range(HEADS):
            if of:
                rate, bias = load_rate(weights, head + of, lanes, sizes)
            _head_products(
                *(inputs, strides, products, rate, bias, numbers),
                *(at, head + of, token, inside, keyed, sizes, CHUNK),
            )


def chunk_products(
    inputs: TokenInputs, rule: Rule, weights: HeadWeights, rows: StateRows, sizes: Sizes
) -> ChunkProducts:
    """Compute the products of a call's chunks, in one kernel."""
    num_rows = len(rows.slots)
    num_chunks, heads = len(inputs.v) // CHUNK + 2 * num_rows, sizes.heads
    products = ChunkProducts(
        weights.a_log.new_empty(num_chunks, heads, 2, CHUNK, CHUNK),
        weights.a_log.new_empty(num_chunks, heads, 4 * CHUNK),
        None,
    )
    together = heads // sizes.key_heads if num_chunks * sizes.key_heads >= ENOUGH else 1
    _products_kernel[(num_chunks, heads // together)](
        inputs,
        tuple(each.stride(0) for each in inputs),
        products,
        rows,
        num_rows,
        weights,
        rule.numbers,
        sizes=sizes,
        CHUNK=CHUNK,
        BLOCK_K=max(16, padded_lanes(sizes.k)),
        HEADS=together,
        num_warps=1,
        maxnreg=None if together == 1 else REGISTERS,
        **overlap_of(products.squares),
    )
    return products
