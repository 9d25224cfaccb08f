# mypy: allow-untyped-defs, allow-incomplete-defs
"""Compute for every chunk of Kimi's delta rule at once what needs no state.

Each channel of a key has its decay, so that products of keys are sums over channels that no product
of matrices gives: exp(D[i, j]) is not a factor of theirs, and exp(D[i]) / exp(D[j]) would overflow.
A chunk's keys are held and decayed from token to token instead, each by factors of at most 1; of
token i, with unit lengths and D[i, j] [K] the sum of the decays after token j up to i:

    A[i, j] = beta[i] k[i] · (exp(D[i, j]) ∘ k[j])       of j < i
    P[i, j] = scale q[i] · (exp(D[i, j]) ∘ k[j])         of j ≤ i
    T = (I + A)⁻¹ diag(beta)

After the last one they are what the chunk adds to the state's columns.
"""

from __future__ import annotations

from engine.kernels.recurrent.chunk_products import ChunkProducts, chunk_at, solve
from engine.kernels.recurrent.gates import gates, load_rate
from engine.kernels.recurrent.matrices import CHUNK, HeadWeights, Rule, TokenInputs
from engine.kernels.recurrent.token_steps import Sizes, unit
from engine.memory.state_rows import StateRows
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, padded_lanes, tl


@jit
def _decayed_products(
    inputs,
    strides,
    line,
    token,
    inside,
    head,
    rate,
    bias,
    keys,
    numbers,
    sizes: tl.constexpr,
    CHUNK: tl.constexpr,  # noqa: N803
):
    """Products of a chunk's q and k with its k before them [C, C], of unit lengths, and betas [C];
    write what was decayed at `line`."""
    lanes = tl.arange(0, CHUNK)
    key_head = head // (sizes.heads // sizes.key_heads)
    kept = tl.zeros([CHUNK, keys.shape[1]], tl.float32)
    since_begin = tl.full([1, keys.shape[1]], 1.0, tl.float32)
    seen = tl.zeros([CHUNK, CHUNK], tl.float32)
    system = tl.zeros([CHUNK, CHUNK], tl.float32)
    betas = tl.zeros([CHUNK], tl.float32)
    for i in range(CHUNK):
        at = tl.sum(tl.where(lanes == i, token, 0), 0)
        is_inside = tl.sum(tl.where((lanes == i) & inside, 1, 0), 0) > 0
        channels = keys < tl.where(is_inside, sizes.k, 0)
        q_ptr = inputs.q + at * strides[0] + key_head * sizes.k + keys
        k_ptr = inputs.k + at * strides[1] + key_head * sizes.k + keys
        a_ptr = inputs.a + at * strides[3] + head * sizes.k + keys
        b = tl.load(inputs.b + at * strides[4] + head, mask=is_inside, other=0.0)
        q = unit(tl.load(q_ptr, mask=channels, other=0.0).to(tl.float32), True) * numbers.scale
        k = unit(tl.load(k_ptr, mask=channels, other=0.0).to(tl.float32), True)
        a = tl.load(a_ptr, mask=channels, other=0.0)
        decay, beta = gates(a, b, rate, bias, numbers, sizes.delta)
        betas = tl.where((lanes == i) & is_inside, beta, betas)
        factor = tl.where(channels, tl.exp(decay), 1.0)
        kept *= factor
        since_begin *= factor
        # Of columns, so that the sums stay where the keys are.
        is_own = lanes[None, :] == i
        system = tl.where(is_own, tl.sum(kept * k, 1, keep_dims=True), system)
        kept = tl.where(lanes[:, None] == i, k, kept)
        seen = tl.where(is_own, tl.sum(kept * q, 1, keep_dims=True), seen)
        tl.store(line + i * sizes.k + keys, q * since_begin, mask=keys < sizes.k)
        tl.store(line + (CHUNK + i) * sizes.k + keys, k * since_begin, mask=keys < sizes.k)
    at_end = line + (2 * CHUNK + lanes[:, None]) * sizes.k + keys
    tl.store(at_end, kept, mask=keys < sizes.k)
    tl.store(line + 3 * CHUNK * sizes.k + keys, since_begin, mask=keys < sizes.k)
    return tl.trans(seen), tl.trans(system), betas


@jit(do_not_specialize=["num_rows"])
def _channel_products_kernel(
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
    overlap: tl.constexpr,
):
    """A program takes a chunk of a head."""
    begin_next(overlap)
    at, head = tl.program_id(0), tl.program_id(1)
    lanes = tl.arange(0, CHUNK)
    keys = tl.arange(0, BLOCK_K)[None, :]
    rate, bias = load_rate(weights, head, keys, sizes)
    wait_for_last(overlap)
    first, start, begin, finish, is_computed = chunk_at(rows, num_rows, at, CHUNK)
    if is_computed:
        position = first + lanes
        inside = (position >= begin) & (position < finish)
        token = start + position - begin
        of = (at * sizes.heads + head).to(tl.int64)
        line = products.decayed + of * (3 * CHUNK + 1) * sizes.k
        seen, system, beta = _decayed_products(
            inputs,
            strides,
            line,
            token,
            inside,
            head,
            rate,
            bias,
            keys,
            numbers,
            sizes,
            CHUNK,
        )
        squares = products.squares + of * 2 * CHUNK * CHUNK
        solve(squares, system * beta[:, None], seen, beta, None, CHUNK)


def channel_products(
    inputs: TokenInputs, rule: Rule, weights: HeadWeights, rows: StateRows, sizes: Sizes
) -> ChunkProducts:
    """Compute the products of a call's chunks, in one kernel.

    Returns:
        Products whose `decayed` [N, H, 3 C + 1, K] is, of a chunk's tokens, scale exp(D[i]) q[i],
        exp(D[i]) k[i] and exp(D[last, i]) k[i], then exp(D[last]).
    """
    assert rule.delta
    num_rows = len(rows.slots)
    num_chunks, heads = len(inputs.v) // CHUNK + 2 * num_rows, sizes.heads
    products = ChunkProducts(
        weights.a_log.new_empty(num_chunks, heads, 2, CHUNK, CHUNK),
        None,
        weights.a_log.new_empty(num_chunks, heads, 3 * CHUNK + 1, sizes.k),
    )
    _channel_products_kernel[(num_chunks, heads)](
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
        num_warps=2,
        **overlap_of(products.squares),
    )
    return products
