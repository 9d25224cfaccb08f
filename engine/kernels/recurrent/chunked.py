# mypy: allow-untyped-defs, allow-incomplete-defs
"""The recurrence by chunks of positions: prefill.

A program holds some rows of a head's matrix through all chunks of a row; a chunk's equations are
solved as `recurrence` states them. Chunks lie on a grid of the row's own positions, whatever rows
are beside it. Products are of float32, on tensor cores by three products of TF32 parts each.
"""

from __future__ import annotations

import torch

from engine.kernels.recurrent.matrices import CHUNK, Matrices, Rule, TokenInputs
from engine.kernels.recurrent.token_steps import (
    load_state,
    replay,
    sizes_of,
    snapshot,
    store_state,
    unit,
)
from engine.memory.state_rows import NULL_SLOT, Extent, StateRows
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl, triton

VALUES = 64
"""The most rows of a head's matrix that a program holds."""

_NULL = constexpr(NULL_SLOT)


@jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="tf32x3")


@jit
def _load(pointer, token, width, inside, lanes):
    """Rows [C, width] of tokens, float32; 0 outside."""
    mask = inside[:, None] & (lanes < width)
    return tl.load(pointer + token[:, None] + lanes, mask=mask, other=0.0).to(tl.float32)


@jit
def _inverse(system, CHUNK: tl.constexpr):  # noqa: N803
    """The inverse of I + `system`, strictly lower triangular, by forward substitution."""
    rows = tl.arange(0, CHUNK)[:, None]
    inverse = tl.where(rows == tl.arange(0, CHUNK)[None, :], 1.0, 0.0)
    for i in tl.static_range(1, CHUNK):
        factors = tl.sum(tl.where(rows == i, system, 0.0), 0)
        change = tl.sum(factors[:, None] * inverse, 0)
        inverse -= tl.where(rows == i, change[None, :], 0.0)
    return inverse


@jit
def _chunked_kernel(
    inputs,
    strides,
    memory,
    rows,
    skip_ptr,
    out_ptr,
    scale,
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
    first_value = tl.program_id(2) * BLOCK_V
    values = (first_value + tl.arange(0, BLOCK_V))[:, None]
    across = (first_value + tl.arange(0, BLOCK_V))[None, :]
    lanes = tl.arange(0, CHUNK)
    is_before = lanes[:, None] > lanes[None, :]
    key_head = head // (sizes.heads // sizes.key_heads)
    wait_for_last(overlap)
    slot = tl.load(rows.slots + row).to(tl.int64)
    if slot != _NULL:
        start = tl.load(rows.starts + row).to(tl.int64)
        begin = tl.load(rows.begins + row)
        finish = begin + tl.load(rows.starts + row + 1) - start
        state = load_state(memory, rows, row, head, keys, values, sizes)
        state, index = replay(state, memory, rows, row, head, keys, values, sizes)
        for chunk in range(begin // CHUNK, (finish + CHUNK - 1) // CHUNK):
            position = chunk * CHUNK + lanes
            inside = (position >= begin) & (position < finish)
            token = start + position - begin
            q_ptr, k_ptr = inputs.q + key_head * sizes.k, inputs.k + key_head * sizes.k
            q = unit(_load(q_ptr, token * strides[0], sizes.k, inside, keys), sizes.delta)
            k = unit(_load(k_ptr, token * strides[1], sizes.k, inside, keys), sizes.delta)
            v_ptr = inputs.v + head * sizes.v
            v = _load(v_ptr, token * strides[2], sizes.v, inside, across)
            gate = token * sizes.heads + head
            decay = tl.load(inputs.decay + gate, mask=inside, other=0.0)
            beta = tl.load(inputs.beta + gate, mask=inside, other=0.0)[:, None]
            # Summed by segment: a difference of sums loses what is small beside what is large.
            decays = tl.exp(tl.cumsum(tl.where(is_before, decay[:, None], 0.0), 0))
            since_begin = tl.exp(tl.cumsum(decay, 0))[:, None]
            until_end = tl.sum(tl.where(lanes[:, None] == CHUNK - 1, decays, 0.0), 0)[:, None]
            added = beta * v
            if sizes.delta:
                added -= beta * _dot(k * since_begin, tl.trans(state))
                system = tl.where(is_before, beta * _dot(k, tl.trans(k)) * decays, 0.0)
                added = _dot(_inverse(system, CHUNK), added)
            seen = tl.where(lanes[:, None] >= lanes[None, :], decays, 0.0)
            out = _dot(q * since_begin, tl.trans(state))
            out = (out + _dot(_dot(q, tl.trans(k)) * seen, added)) * scale
            if sizes.has_skip:
                out += tl.load(skip_ptr + head) * v
            address = out_ptr + (token[:, None] * sizes.heads + head) * sizes.v + across
            mask = inside[:, None] & (across < sizes.v)
            tl.store(address, out.to(out_ptr.dtype.element_ty), mask=mask)
            state = state * tl.exp(tl.sum(decay, 0)) + _dot(tl.trans(added), k * until_end)
            end = tl.minimum((chunk + 1) * CHUNK, finish)
            index = snapshot(state, memory, rows, row, index, end, head, keys, values, sizes)
        store_state(state, memory, slot, head, keys, values, sizes)


def recurrence_chunked(
    inputs: TokenInputs,
    rule: Rule,
    memory: Matrices,
    rows: StateRows,
    extent: Extent,
    skip: torch.Tensor | None,
) -> torch.Tensor:
    """Compute `recurrence` of rows whose tokens all stand, with a decay a head, in one kernel."""
    assert extent.standing is None
    assert inputs.decay.dim() == 2
    sizes = sizes_of(inputs, rule, memory, rows.snapshot_ends.shape[1], skip is not None)
    out = torch.empty(inputs.v.shape, dtype=inputs.v.dtype, device=inputs.v.device)
    block_v = max(16, min(VALUES, triton.next_power_of_2(sizes.v)))
    _chunked_kernel[(len(rows.slots), sizes.heads, triton.cdiv(sizes.v, block_v))](
        inputs,
        tuple(each.stride(0) for each in inputs[:3]),
        memory,
        rows,
        skip,
        out,
        rule.scale,
        sizes=sizes,
        CHUNK=CHUNK,
        BLOCK_K=max(16, padded_lanes(sizes.k)),
        BLOCK_V=block_v,
        num_warps=8,
        **overlap_of(out),
    )
    return out
