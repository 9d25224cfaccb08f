# mypy: allow-untyped-defs, allow-incomplete-defs
"""The recurrence token by token: decode and verification.

A program takes a few rows of a head's matrix through all tokens of a row, so that a state is read
once and written once a step, however many tokens the step verifies; then it takes the next few.
"""

from __future__ import annotations

import torch

from engine.kernels.recurrent.gates import gates, load_rate
from engine.kernels.recurrent.matrices import HeadWeights, Matrices, Rule, TokenInputs
from engine.kernels.recurrent.token_steps import (
    advance,
    load_row,
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

_NULL = constexpr(NULL_SLOT)


VALUES = 8
"""The rows of a head's matrix that a program holds: one warp's, whose sums need no other's."""
MAX_BLOCKS, ENOUGH = 8, 4096
"""The most blocks of so many rows that a program takes in turn, and the programs that there are at
least where it takes several: about twice as many as run at once on a Hopper GPU."""
REGISTERS, WARP_KEYS = 128, 128
"""The registers of a thread, so that 16 programs share a processor, where a row of a matrix is no
longer than so many numbers: those that a warp loads at once."""


def num_blocks(pairs: int, v: int) -> int:
    """The blocks of a program, for so many pairs of a row and a head, of matrices [v, k].

    Programs begin at a rate that is too low for one block each, and several share what a program
    waits for first. A kernel takes the number as it runs, so that no bits depend on it.
    """
    each: int = triton.cdiv(v, VALUES)
    return max(1, min(MAX_BLOCKS, each, pairs * each // ENOUGH))


@jit
def _load_inputs(inputs, strides, token, end, head, first, keys, values, sizes: tl.constexpr):
    """A head's k, v, a, b and q of a token, as they are stored; zeros from `end` on."""
    k, v, a, b = load_token(
        inputs.k + token * strides[1],
        inputs.v + token * strides[2],
        inputs.a + token * strides[3],
        inputs.b + token * strides[4],
        token < end,
        head,
        first,
        keys,
        values,
        sizes,
    )
    key_head = head // (sizes.heads // sizes.key_heads)
    q_ptr = inputs.q + token * strides[0] + key_head * sizes.k + keys
    q = tl.load(q_ptr, mask=keys < tl.where(token < end, sizes.k, 0), other=0.0)
    return k, v, a, b, q


@jit
def _keep(
    memory, k, v, decay, beta, slot, position, head, first, keys, values, sizes: tl.constexpr
):
    """Keep the inputs of a token that may be refused; a head's first block keeps what all share."""
    group: tl.constexpr = sizes.heads // sizes.key_heads
    at = slot * sizes.drafted + position % sizes.drafted
    is_first = first == 0
    channels = keys < tl.where(is_first, sizes.k, 0)
    if head % group == 0:
        kept_ptr = memory.drafted.k + (at * sizes.key_heads + head // group) * sizes.k + keys
        tl.store(kept_ptr, k, mask=channels)
    of_head = at * sizes.heads + head
    v_ptr = memory.drafted.v + (of_head * sizes.v + first)
    tl.store(v_ptr + values, v, mask=values < sizes.v - first)
    tl.store(memory.drafted.beta + of_head, beta, mask=is_first)
    if sizes.by_channel:
        tl.store(memory.drafted.decay + of_head * sizes.k + keys, decay, mask=channels)
    else:
        tl.store(memory.drafted.decay + of_head, decay, mask=is_first)


@jit
def _take_block(
    inputs,
    strides,
    memory,
    weights,
    out_ptr,
    numbers,
    slot,
    start,
    end,
    num_certain,
    kept,
    head,
    first,
    keys,
    values,
    sizes: tl.constexpr,
):
    """Take some rows of a head's matrix through a row's tokens; `kept` is as `load_row` has it.

    What the first token brings is asked for together with the state, and the live state is stored
    before anything is asked of snapshots.
    """
    source, since, begin, ends, slots = kept
    state = load_state(memory, source, begin, head, first, keys, values, sizes)
    k, v, a, b, q = _load_inputs(inputs, strides, start, end, head, first, keys, values, sizes)
    state = replay(
        state, memory, source, since, begin, ends, slots, head, first, keys, values, sizes
    )
    rate, bias = load_rate(weights, head, keys, sizes)
    decay, beta = gates(a, b, rate, bias, numbers, sizes.delta)
    certain_end = tl.minimum(start + num_certain, end)
    for token in range(start, end):
        state = advance(state, k, v, decay, beta, sizes.delta)
        if token + 1 == certain_end:
            store_state(state, memory, slot, head, first, keys, values, sizes)
        out = tl.sum(state * unit(q.to(tl.float32), sizes.delta), 1) * numbers.scale
        if sizes.has_skip:
            out += tl.load(weights.skip + head) * v.to(tl.float32)
        to_ptr = out_ptr + ((token * sizes.heads + head) * sizes.v + first)
        tl.store(to_ptr + values, out.to(out_ptr.dtype.element_ty), mask=values < sizes.v - first)
        at = begin + token - start
        if token < certain_end:
            snapshot(state, memory, ends, slots, at + 1, head, first, keys, values, sizes)
        else:
            _keep(memory, k, v, decay, beta, slot, at, head, first, keys, values, sizes)
        k, v, a, b, q = _load_inputs(
            inputs, strides, token + 1, end, head, first, keys, values, sizes
        )
        decay, beta = gates(a, b, rate, bias, numbers, sizes.delta)


@jit(do_not_specialize=["num_certain", "num_blocks"])
def _serial_kernel(
    inputs,
    strides,
    memory,
    rows,
    weights,
    out_ptr,
    numbers,
    num_certain,
    num_blocks,
    sizes: tl.constexpr,
    BLOCK_K: tl.constexpr,  # noqa: N803
    BLOCK_V: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes `num_blocks` times BLOCK_V rows of a head's matrix, of a row.

    It asks for all that depends on the row alone at once.
    """
    begin_next(overlap)
    row, head = tl.program_id(0), tl.program_id(1)
    keys, values = tl.arange(0, BLOCK_K)[None, :], tl.arange(0, BLOCK_V)
    wait_for_last(overlap)
    slot = tl.load(rows.slots + row).to(tl.int64)
    start = tl.load(rows.starts + row)
    end = tl.load(rows.starts + row + 1)
    kept = load_row(rows, row, sizes)
    begin = tl.program_id(2) * num_blocks * BLOCK_V
    for first in range(begin, tl.minimum(begin + num_blocks * BLOCK_V, sizes.v), BLOCK_V):
        if slot == _NULL:
            for token in range(start, end):
                to_ptr = out_ptr + ((token * sizes.heads + head) * sizes.v + first)
                tl.store(to_ptr + values, 0.0 * values, mask=values < sizes.v - first)
        else:
            _take_block(
                inputs,
                strides,
                memory,
                weights,
                out_ptr,
                numbers,
                slot,
                start,
                end,
                num_certain,
                kept,
                head,
                first,
                keys,
                values,
                sizes,
            )


def recurrence_serial(
    inputs: TokenInputs,
    rule: Rule,
    weights: HeadWeights,
    memory: Matrices,
    rows: StateRows,
    extent: Extent,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `recurrence` token by token, in one kernel."""
    sizes = sizes_of(inputs, rule, weights, memory, rows.snapshot_ends.shape[1])
    if out is None:
        out = torch.empty(inputs.v.shape, dtype=inputs.v.dtype, device=inputs.v.device)
    assert out.is_contiguous()
    num_rows = len(rows.slots)
    blocks = num_blocks(num_rows * sizes.heads, sizes.v)
    _serial_kernel[(num_rows, sizes.heads, triton.cdiv(sizes.v, VALUES * blocks))](
        inputs,
        tuple(each.stride(0) for each in inputs),
        memory,
        rows,
        weights,
        out,
        rule.numbers,
        extent.max_len if extent.num_certain is None else extent.num_certain,
        blocks,
        sizes=sizes,
        BLOCK_K=padded_lanes(sizes.k),
        BLOCK_V=VALUES,
        num_warps=1,
        maxnreg=REGISTERS if padded_lanes(sizes.k) <= WARP_KEYS else None,
        **overlap_of(out),
    )
    return out
