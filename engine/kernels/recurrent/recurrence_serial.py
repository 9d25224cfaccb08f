# mypy: allow-untyped-defs, allow-incomplete-defs
"""The recurrence token by token: decode and verification.

A program holds a few rows of a head's matrix through all tokens of a row, so that a state is read
once and written once a step, however many tokens the step verifies.
"""

from __future__ import annotations

import torch

from engine.kernels.recurrent.matrices import Matrices, Rule, TokenInputs
from engine.kernels.recurrent.token_steps import (
    advance,
    load_state,
    load_token,
    replay,
    sizes_of,
    snapshot,
    store_state,
    unit,
)
from engine.memory.state_rows import NULL_SLOT, Extent, StateRows
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl, triton

VALUES = 8
"""The rows of a head's matrix that a program holds: one warp's, whose sums need no other's."""

_NULL = constexpr(NULL_SLOT)


@jit
def _keep(inputs, strides, memory, token, slot, position, head, keys, values, sizes: tl.constexpr):
    """Keep the inputs of a token that may be refused; programs share a head's and a token's."""
    group: tl.constexpr = sizes.heads // sizes.key_heads
    at = slot * sizes.drafted + position % sizes.drafted
    is_first = tl.program_id(2) == 0
    channels = tl.where(is_first, sizes.k, 0)
    key_head = head // group
    if head % group == 0:
        k_ptr = inputs.k + token * strides[1] + key_head * sizes.k + keys
        kept_ptr = memory.drafted.k + (at * sizes.key_heads + key_head) * sizes.k + keys
        tl.store(kept_ptr, tl.load(k_ptr, mask=keys < channels), mask=keys < channels)
    v = tl.load(inputs.v + token * strides[2] + head * sizes.v + values, mask=values < sizes.v)
    v_ptr = memory.drafted.v + (at * sizes.heads + head) * sizes.v + values
    tl.store(v_ptr, v, mask=values < sizes.v)
    beta = tl.load(inputs.beta + token * sizes.heads + head)
    tl.store(memory.drafted.beta + at * sizes.heads + head, beta, mask=is_first)
    if sizes.by_channel:
        from_ptr = inputs.decay + (token * sizes.heads + head) * sizes.k + keys
        to_ptr = memory.drafted.decay + (at * sizes.heads + head) * sizes.k + keys
        tl.store(to_ptr, tl.load(from_ptr, mask=keys < channels), mask=keys < channels)
    else:
        decay = tl.load(inputs.decay + token * sizes.heads + head)
        tl.store(memory.drafted.decay + at * sizes.heads + head, decay, mask=is_first)


@jit(do_not_specialize=["num_certain"])
def _serial_kernel(
    inputs,
    strides,
    memory,
    rows,
    skip_ptr,
    out_ptr,
    scale,
    num_certain,
    sizes: tl.constexpr,
    BLOCK_K: tl.constexpr,  # noqa: N803
    BLOCK_V: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes BLOCK_V rows of a head's matrix, of a row."""
    begin_next(overlap)
    row, head = tl.program_id(0), tl.program_id(1)
    keys = tl.arange(0, BLOCK_K)[None, :]
    values = (tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V))[:, None]
    key_head = head // (sizes.heads // sizes.key_heads)
    decays: tl.constexpr = sizes.heads * (sizes.k if sizes.by_channel else 1)
    wait_for_last(overlap)
    slot = tl.load(rows.slots + row).to(tl.int64)
    start = tl.load(rows.starts + row).to(tl.int64)
    end = tl.load(rows.starts + row + 1).to(tl.int64)
    if slot == _NULL:
        for token in range(start, end):
            address = out_ptr + (token * sizes.heads + head) * sizes.v + values
            tl.store(address, 0.0 * values, mask=values < sizes.v)
    else:
        begin = tl.load(rows.begins + row)
        state = load_state(memory, rows, row, head, keys, values, sizes)
        state, index = replay(state, memory, rows, row, head, keys, values, sizes)
        certain_end = tl.minimum(start + num_certain, end)
        for token in range(start, end):
            k, v, decay, beta = load_token(
                inputs.k + token * strides[1],
                inputs.v + token * strides[2],
                inputs.decay + token * decays,
                inputs.beta + token * sizes.heads,
                head,
                keys,
                values,
                sizes,
            )
            state = advance(state, k, v, decay, beta, sizes.delta)
            q_ptr = inputs.q + token * strides[0] + key_head * sizes.k + keys
            q = tl.load(q_ptr, mask=keys < sizes.k, other=0.0).to(tl.float32)
            out = tl.sum(state * unit(q, sizes.delta), 1, keep_dims=True) * scale
            if sizes.has_skip:
                out += tl.load(skip_ptr + head) * v
            address = out_ptr + (token * sizes.heads + head) * sizes.v + values
            tl.store(address, out.to(out_ptr.dtype.element_ty), mask=values < sizes.v)
            position = begin + token - start
            if token < certain_end:
                index = snapshot(
                    state, memory, rows, row, index, position + 1, head, keys, values, sizes
                )
                if token + 1 == certain_end:
                    store_state(state, memory, slot, head, keys, values, sizes)
            else:
                _keep(inputs, strides, memory, token, slot, position, head, keys, values, sizes)


def recurrence_serial(
    inputs: TokenInputs,
    rule: Rule,
    memory: Matrices,
    rows: StateRows,
    extent: Extent,
    skip: torch.Tensor | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `recurrence` token by token, in one kernel."""
    sizes = sizes_of(inputs, rule, memory, rows.snapshot_ends.shape[1], skip is not None)
    if out is None:
        out = torch.empty(inputs.v.shape, dtype=inputs.v.dtype, device=inputs.v.device)
    assert out.is_contiguous()
    _serial_kernel[(len(rows.slots), sizes.heads, triton.cdiv(sizes.v, VALUES))](
        inputs,
        tuple(each.stride(0) for each in inputs[:3]),
        memory,
        rows,
        skip,
        out,
        rule.scale,
        extent.max_len if extent.num_certain is None else extent.num_certain,
        sizes=sizes,
        BLOCK_K=padded_lanes(sizes.k),
        BLOCK_V=VALUES,
        num_warps=1,
        **overlap_of(out),
    )
    return out
