# mypy: allow-untyped-defs, allow-incomplete-defs
"""Attention of a row's last few tokens over the paged cache: one kernel, lengths on the device.

A program takes a key head, a row and a share of the row's keys, which it reads once for all query
tokens and heads. Where a row is shared by several programs, the last of them to arrive adds up
what the others left, in the order of the shares: the sum does not depend on who came last. The
torch twin is `PlainAttention`.

Letters in comments: G query heads a key head, M = query_len * G queries (token by token, padded to
at least 16 for the matrix units), D head_dim (padded to a power of two), N keys a block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.attention.base import AttentionSpec
from engine.kernels.overlap import begin_next, overlap_of, wait_for_last
from sampling.triton_support import constexpr, jit, tl, triton

MAX_SHARES = 16
"""Programs a row and key head at most."""
MIN_DOT = 16
_LOG2E = constexpr(1.4426950408889634)


class DecodeScratch:
    """What the shares of a row leave for the last of them; one owner for all layers.

    Attributes:
        sums: float32, room for the shares' weighted values.
        stats: float32, room for their maxima and sums of weights.
        arrivals: int32, shares that have come, 0 between launches.
        max_query_len: query tokens a row may bring.
    """

    def __init__(
        self,
        specs: list[AttentionSpec],
        max_rows: int,
        device: torch.device,
        max_query_len: int = 1,
    ) -> None:
        properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
        self.num_programs = 2 * properties.multi_processor_count if properties else 8
        heads = max(spec.num_q_heads for spec in specs)
        kv_heads = min(spec.num_kv_heads for spec in specs)
        # shares > 1 only while rows * kv_heads * shares <= num_programs
        shared_rows = max(1, self.num_programs // kv_heads)
        self.max_query_len = max_query_len
        width = shared_rows * heads * max_query_len
        self.sums = torch.empty(
            width * max(spec.head_dim for spec in specs), dtype=torch.float32, device=device
        )
        self.stats = torch.empty(width * 2, dtype=torch.float32, device=device)
        most = max(spec.num_kv_heads for spec in specs)
        self.arrivals = torch.zeros(max_rows * most, dtype=torch.int32, device=device)

    def num_shares(self, num_rows: int, kv_heads: int) -> int:
        """How many programs share a row and key head, so that together they fill the GPU."""
        return max(1, min(MAX_SHARES, self.num_programs // (num_rows * kv_heads)))


class _Paged(NamedTuple):
    """Where the keys of a batch are; one kernel argument."""

    pages: torch.Tensor
    tables: torch.Tensor
    seq_lens: torch.Tensor


class _Shared(NamedTuple):
    """The pointers of `DecodeScratch`; one kernel argument."""

    sums: torch.Tensor
    stats: torch.Tensor
    arrivals: torch.Tensor


class _Rules(NamedTuple):
    """What a layer's attention is, see AttentionSpec; one kernel argument."""

    scale: float
    softcap: float | None
    window: int | None
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None


@jit
def _scores(q, keys, distance, slopes, rules, precision: tl.constexpr):
    """Scores of q [M, D] against keys [D, N] in units of log2, -inf outside the window.

    `distance` [M or 1, N] is key position - query position.
    """
    scores = tl.dot(q, keys, input_precision=precision) * rules.scale
    if rules.softcap is not None:  # c * tanh(s / c)
        scores = rules.softcap * (2.0 * tl.sigmoid(2.0 * scores / rules.softcap) - 1.0)
    if rules.alibi_slopes is not None:
        scores += slopes[:, None] * distance.to(tl.float32)
    scores *= _LOG2E
    if rules.window is not None:
        scores = tl.where(distance > -rules.window, scores, float("-inf"))
    return scores


@jit
def _rescale(top, higher):
    """What weights taken against `top` are worth against `higher`; nothing seen yet is -inf."""
    return tl.exp2(top - tl.where(higher == float("-inf"), 0.0, higher))


@jit
def _add_others(sums, stats, active, cell, m, inside, mask, M: tl.constexpr, D: tl.constexpr):  # noqa: N803
    """Maxima, sums of weights and weighted values of all shares, in their order."""
    top = tl.full((mask.shape[0],), float("-inf"), tl.float32)
    total = tl.zeros((mask.shape[0],), tl.float32)
    acc = tl.zeros(mask.shape, tl.float32)
    for share in range(active):
        # Past the first-level cache, which may hold what was there before.
        stat = stats + ((cell + share) * M + m) * 2
        other_top = tl.load(stat, mask=inside, other=float("-inf"), cache_modifier=".cg")
        other_total = tl.load(stat + 1, mask=inside, other=0.0, cache_modifier=".cg")
        other = tl.load(sums + (cell + share) * M * D, mask=mask, other=0.0, cache_modifier=".cg")
        higher = tl.maximum(top, other_top)
        mine, theirs = _rescale(top, higher), _rescale(other_top, higher)
        total = total * mine + other_total * theirs
        acc = acc * mine[:, None] + other * theirs[:, None]
        top = higher
    return top, total, acc


@jit
def _decode_kernel(
    q,
    out,
    paged,
    table_stride,
    shared,
    num_shares,
    rules,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    query_len: tl.constexpr,
    head_dim: tl.constexpr,
    page: tl.constexpr,
    padded_queries: tl.constexpr,
    padded_dim: tl.constexpr,
    block: tl.constexpr,
    precision: tl.constexpr,
    overlap: tl.constexpr,
):
    begin_next(overlap)
    head, row, share = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    seq_len = tl.load(paged.seq_lens + row)
    first = 0
    if rules.window is not None:
        first = tl.maximum(seq_len - query_len + 1 - rules.window, 0) // block * block
    per_share = tl.cdiv(tl.cdiv(seq_len - first, num_shares), block) * block
    active = tl.cdiv(seq_len - first, per_share)
    wait_for_last(overlap)
    if share >= active:
        return

    m, d = tl.arange(0, padded_queries), tl.arange(0, padded_dim)
    in_queries, in_head = m < query_len * group, d < head_dim
    token, q_heads = m // group, head * group + m % group
    mask = in_queries[:, None] & in_head[None, :]
    at_token = (row * query_len + token) * kv_heads * group
    at_heads = (at_token + q_heads)[:, None] * head_dim + d[None, :]
    queries = tl.load(q + at_heads, mask=mask, other=0.0)
    positions = seq_len - query_len + token
    slopes = None
    if rules.alibi_slopes is not None:
        slopes = tl.load(rules.alibi_slopes + q_heads, mask=in_queries, other=0.0)

    table = paged.tables + row * table_stride
    page_stride: tl.constexpr = 2 * page * kv_heads * head_dim
    top = tl.full((padded_queries,), float("-inf"), tl.float32)
    total = tl.zeros((padded_queries,), tl.float32)
    acc = tl.zeros((padded_queries, padded_dim), tl.float32)
    start = first + share * per_share
    end = tl.minimum(start + per_share, seq_len)
    for at in range(start, end, block):
        n = at + tl.arange(0, block)
        inside = n < end
        block_ids = tl.load(table + n // page, mask=inside, other=0).to(tl.int64)
        cells = block_ids * page_stride + (n % page * kv_heads + head) * head_dim
        key_mask = inside[None, :] & in_head[:, None]
        keys = tl.load(paged.pages + cells[None, :] + d[:, None], mask=key_mask, other=0.0)
        if query_len == 1:  # a comparison for each key instead of each score
            distance = (n - seq_len + 1)[None, :]
            seen = inside[None, :]
        else:
            distance = n[None, :] - positions[:, None]
            seen = inside[None, :] & (distance <= 0)
        scores = _scores(queries, keys, distance, slopes, rules, precision)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        shrink = _rescale(top, higher)
        total = total * shrink + tl.sum(weights, 1)
        values = tl.load(
            paged.pages + page * kv_heads * head_dim + cells[:, None] + d[None, :],
            mask=inside[:, None] & in_head[None, :],
            other=0.0,
        )
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision=precision)
        top = higher

    is_last = True
    if active > 1:
        cell = (row * kv_heads + head) * num_shares
        count: tl.constexpr = query_len * group
        stat = shared.stats + ((cell + share) * count + m) * 2
        tl.store(stat, top, mask=in_queries)
        tl.store(stat + 1, total, mask=in_queries)
        sums = shared.sums + m[:, None] * head_dim + d[None, :]
        tl.store(sums + (cell + share) * count * head_dim, acc, mask=mask)
        tl.debug_barrier()  # all threads' stores before the arrival is announced
        arrivals = shared.arrivals + row * kv_heads + head
        is_last = tl.atomic_add(arrivals, 1) == active - 1
        if is_last:
            tl.store(arrivals, 0)
            top, total, acc = _add_others(
                sums, shared.stats, active, cell, m, in_queries, mask, count, head_dim
            )
    if is_last:
        if rules.sinks is not None:
            sink = tl.load(rules.sinks + q_heads, mask=in_queries, other=float("-inf")) * _LOG2E
            higher = tl.maximum(top, sink)
            shrink = _rescale(top, higher)
            total = total * shrink + _rescale(sink, higher)
            acc = acc * shrink[:, None]
        total = tl.where(total == 0.0, 1.0, total)  # padded queries
        tl.store(out + at_heads, (acc / total[:, None]).to(out.dtype.element_ty), mask=mask)


_decode = (
    triton.jit(_decode_kernel.fn, do_not_specialize=["table_stride", "num_shares"])
    if triton is not None
    else _decode_kernel
)


def paged_decode(
    spec: AttentionSpec,
    q: torch.Tensor,
    pages: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    scratch: DecodeScratch,
    query_len: int = 1,
) -> None:
    """Attend from each row's newest tokens, token by token, to them and all before them.

    Args:
        q: [R * query_len, num_q_heads, D], the tokens of a row side by side; the fused decoder's
            is contiguous, another is copied.
        pages: one layer of a KVCache.
        block_tables: int32 [R or more, max_blocks].
        seq_lens: int32 [R or more], the newest token included, >= query_len.
        out: [R * query_len, num_q_heads, D], contiguous.
        query_len: tokens a row, 1 to `scratch.max_query_len`.
    """
    assert query_len <= scratch.max_query_len
    head_dim, num_rows = q.shape[2], q.shape[0] // query_len
    kv_heads, page = spec.num_kv_heads, pages.shape[2]
    shares = scratch.num_shares(num_rows, kv_heads)
    group = spec.num_q_heads // kv_heads
    padded_queries = max(MIN_DOT, triton.next_power_of_2(query_len * group))
    _decode[(kv_heads, num_rows, shares)](
        q.contiguous(),
        out,
        _Paged(pages, block_tables, seq_lens),
        block_tables.stride(0),
        _Shared(scratch.sums, scratch.stats, scratch.arrivals),
        shares,
        _Rules(spec.scale, spec.softcap, spec.sliding_window, spec.alibi_slopes, spec.sinks),
        kv_heads=kv_heads,
        group=group,
        query_len=query_len,
        head_dim=head_dim,
        page=page,
        padded_queries=padded_queries,
        padded_dim=max(MIN_DOT, triton.next_power_of_2(head_dim)),
        block=64,
        precision="ieee" if q.dtype == torch.float32 else "tf32",
        # Page ids are loaded ahead of keys, so five stages are two blocks of keys in flight.
        num_warps=2 if padded_queries <= 32 else 4,
        num_stages=5,
        **overlap_of(q),
    )
