# mypy: allow-untyped-defs, allow-incomplete-defs
"""What the recurrence's kernels share: one token's step, replayed drafts, snapshots."""

from __future__ import annotations

from typing import NamedTuple

from engine.kernels.recurrent.matrices import Matrices, Rule, TokenInputs
from engine.kernels.recurrent.reference import NORM_EPS
from engine.memory.state_rows import NULL_SLOT
from sampling.device.triton_support import constexpr, jit, padded_lanes, tl

_EPS = constexpr(NORM_EPS)
_NULL = constexpr(NULL_SLOT)


class Sizes(NamedTuple):
    """What a kernel is compiled for.

    Attributes:
        heads, key_heads, k, v: of the matrices. drafted: positions of a slot's `Drafted`.
        snapshots: the snapshots that a row may have. lanes: their number, padded.
        delta: the delta rule. by_channel: each channel of k has its decay.
        has_skip: v itself is added to what is read.
    """

    heads: int
    key_heads: int
    k: int
    v: int
    drafted: int
    snapshots: int
    lanes: int
    delta: bool
    by_channel: bool
    has_skip: bool


def sizes_of(
    inputs: TokenInputs, rule: Rule, memory: Matrices, snapshots: int, has_skip: bool
) -> Sizes:
    """The sizes of a call, whose layouts are checked."""
    heads, v = inputs.v.shape[1:]
    key_heads, k = inputs.k.shape[1:]
    for each in (inputs.q, inputs.k, inputs.v):
        assert each.stride(2) == 1
        assert each.stride(1) == each.shape[2]
    for each in (inputs.decay, inputs.beta, memory.matrix, *memory.drafted):
        assert each.is_contiguous()
    assert memory.matrix.shape[1:] == (heads, v, k)
    return Sizes(
        *(heads, key_heads, k, v, memory.drafted.k.shape[1]),
        *(snapshots, padded_lanes(snapshots)),
        *(rule.delta, inputs.decay.dim() == 3, has_skip),
    )


@jit
def unit(x, delta: tl.constexpr):
    """x [..., K] over its length, where the rule asks for that."""
    if delta:
        x *= tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) + _EPS)
    return x


@jit
def advance(state, k, v, decay, beta, delta: tl.constexpr):
    """The state [V, K] after a token: k [1, K], v [V, 1], decay [1, K] or a number, beta."""
    state *= tl.exp(decay)
    if delta:
        v -= tl.sum(state * k, 1, keep_dims=True)
    return state + (beta * v) * k


@jit
def load_token(k_ptr, v_ptr, decay_ptr, beta_ptr, head, keys, values, sizes: tl.constexpr):
    """A head's k [1, K], v [V, 1], decay and beta; the pointers are at their token's."""
    key_head = head // (sizes.heads // sizes.key_heads)
    k = tl.load(k_ptr + key_head * sizes.k + keys, mask=keys < sizes.k, other=0.0)
    v = tl.load(v_ptr + head * sizes.v + values, mask=values < sizes.v, other=0.0)
    if sizes.by_channel:
        decay = tl.load(decay_ptr + head * sizes.k + keys, mask=keys < sizes.k, other=0.0)
    else:
        decay = tl.load(decay_ptr + head)
    return unit(k.to(tl.float32), sizes.delta), v.to(tl.float32), decay, tl.load(beta_ptr + head)


@jit
def load_drafted(drafted, slot, position, head, keys, values, sizes: tl.constexpr):
    """What a slot keeps of the token at a position, as `load_token` has it."""
    at = slot * sizes.drafted + position % sizes.drafted
    decays: tl.constexpr = sizes.heads * (sizes.k if sizes.by_channel else 1)
    return load_token(
        drafted.k + at * sizes.key_heads * sizes.k,
        drafted.v + at * sizes.heads * sizes.v,
        drafted.decay + at * decays,
        drafted.beta + at * sizes.heads,
        head,
        keys,
        values,
        sizes,
    )


@jit
def load_state(memory, rows, row, head, keys, values, sizes: tl.constexpr):
    """A head's state [V, K] that a row begins from: its source's, or zeros at position 0."""
    count = tl.where(tl.load(rows.begins + row) > 0, sizes.k, 0)
    inside = (values < sizes.v) & (keys < count)
    source = tl.load(rows.sources + row).to(tl.int64)
    address = ((source * sizes.heads + head) * sizes.v + values) * sizes.k + keys
    return tl.load(memory.matrix + address, mask=inside, other=0.0)


@jit
def store_state(state, memory, slot, head, keys, values, sizes: tl.constexpr):
    """Store a head's state [V, K] in a slot, unless that is the null slot."""
    inside = (values < sizes.v) & (keys < tl.where(slot != _NULL, sizes.k, 0))
    address = ((slot.to(tl.int64) * sizes.heads + head) * sizes.v + values) * sizes.k + keys
    tl.store(memory.matrix + address, state, mask=inside)


@jit
def replay(state, memory, rows, row, head, keys, values, sizes: tl.constexpr):
    """Enter a row's accepted drafts; the state, and the index of the row's next snapshot."""
    begin = tl.load(rows.begins + row)
    position = begin - tl.load(rows.replays + row)
    lanes = tl.arange(0, sizes.lanes)
    end_ptr = rows.snapshot_ends + row * sizes.snapshots + lanes
    ends = tl.load(end_ptr, mask=lanes < sizes.snapshots, other=1 << 62)
    index = tl.sum((ends <= position).to(tl.int32), 0)
    source = tl.load(rows.sources + row).to(tl.int64)
    for at in range(position, begin):
        k, v, decay, beta = load_drafted(memory.drafted, source, at, head, keys, values, sizes)
        state = advance(state, k, v, decay, beta, sizes.delta)
        index = snapshot(state, memory, rows, row, index, at + 1, head, keys, values, sizes)
    return state, index


@jit
def snapshot(state, memory, rows, row, index, end, head, keys, values, sizes: tl.constexpr):
    """Copy the state to the row's snapshot `index` if it ends at `end`; the next one's index."""
    at = row * sizes.snapshots + index
    is_end = tl.load(rows.snapshot_ends + at, mask=index < sizes.snapshots, other=-1) == end
    if is_end:
        into = tl.load(rows.snapshot_slots + at)
        store_state(state, memory, into, head, keys, values, sizes)
    return index + is_end.to(tl.int32)
