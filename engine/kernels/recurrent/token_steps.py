# mypy: allow-untyped-defs, allow-incomplete-defs
"""What the recurrence's kernels share: one token's step, replayed drafts, snapshots.

A head's state is a tensor [V, K], or [K / L, V, L] where lanes of L channels sum by themselves:
`keys` and `values` are indices of channels and values that broadcast to it.
"""

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
def over_keys(x):
    """x summed over its channels of k: its last dimension and, of three, its first."""
    if len(x.shape) == 3:
        x = tl.sum(x, 0, keep_dims=True)
    return tl.sum(x, len(x.shape) - 1, keep_dims=True)


@jit
def unit(x, delta: tl.constexpr):
    """x over its length, where the rule asks for that."""
    if delta:
        x *= tl.rsqrt(over_keys(x * x) + _EPS)
    return x


@jit
def advance(state, k, v, decay, beta, delta: tl.constexpr):
    """The state after a token: k over its channels, v over its values, decay as k or a number."""
    k = unit(k, delta)
    state *= tl.exp(decay)
    if delta:
        v -= over_keys(state * k)
    return state + (beta * v) * k


@jit
def load_token(k_ptr, v_ptr, decay_ptr, beta_ptr, head, keys, values, sizes: tl.constexpr, inside):
    """A head's k, v, decay and beta; the pointers are at their token's, 0 where not `inside`."""
    key_head = head // (sizes.heads // sizes.key_heads)
    channels = tl.where(inside, sizes.k, 0)
    k = tl.load(k_ptr + key_head * sizes.k + keys, mask=keys < channels, other=0.0)
    v_mask = values < tl.where(inside, sizes.v, 0)
    v = tl.load(v_ptr + head * sizes.v + values, mask=v_mask, other=0.0)
    if sizes.by_channel:
        decay = tl.load(decay_ptr + head * sizes.k + keys, mask=keys < channels, other=0.0)
    else:
        decay = tl.load(decay_ptr + head, mask=inside, other=0.0)
    beta = tl.load(beta_ptr + head, mask=inside, other=0.0)
    return k.to(tl.float32), v.to(tl.float32), decay, beta


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
        True,
    )


@jit
def load_state(memory, source, begin, head, keys, values, sizes: tl.constexpr):
    """A head's state that a row begins from: its source's, or zeros at position 0."""
    inside = (values < sizes.v) & (keys < tl.where(begin > 0, sizes.k, 0))
    address = ((source * sizes.heads + head) * sizes.v + values) * sizes.k + keys
    return tl.load(memory.matrix + address, mask=inside, other=0.0)


@jit
def store_state(state, memory, slot, head, keys, values, sizes: tl.constexpr):
    """Store a head's state in a slot, unless that is the null slot."""
    inside = (values < sizes.v) & (keys < tl.where(slot != _NULL, sizes.k, 0))
    address = ((slot.to(tl.int64) * sizes.heads + head) * sizes.v + values) * sizes.k + keys
    tl.store(memory.matrix + address, state, mask=inside)


@jit
def replay(
    state, memory, rows, row, source, begin, replays, index, next_end, head, keys, values, sizes
):
    """Enter a row's accepted drafts; the state, and the row's next snapshot."""
    for at in range(begin - replays, begin):
        k, v, decay, beta = load_drafted(memory.drafted, source, at, head, keys, values, sizes)
        state = advance(state, k, v, decay, beta, sizes.delta)
        index, next_end = snapshot(
            state, memory, rows, row, index, next_end, at + 1, head, keys, values, sizes
        )
    return state, index, next_end


@jit
def first_snapshot(rows, row, position, sizes: tl.constexpr):
    """The index of a row's first snapshot after a position, and where it ends, -1 for none."""
    lanes = tl.arange(0, sizes.lanes)
    end_ptr = rows.snapshot_ends + row * sizes.snapshots + lanes
    ends = tl.load(end_ptr, mask=lanes < sizes.snapshots, other=1 << 62)
    index = tl.sum((ends <= position).to(tl.int32), 0)
    return index, _end_of(rows, row, index, sizes)


@jit
def _end_of(rows, row, index, sizes: tl.constexpr):
    at = row * sizes.snapshots + index
    return tl.load(rows.snapshot_ends + at, mask=index < sizes.snapshots, other=-1)


@jit
def snapshot(
    state, memory, rows, row, index, next_end, end, head, keys, values, sizes: tl.constexpr
):
    """Copy the state to the row's snapshot `index` if it ends at `end`; the row's next one.

    Where that ends is loaded ahead: at each token's end the load would be waited for.
    """
    if end == next_end:
        into = tl.load(rows.snapshot_slots + row * sizes.snapshots + index)
        store_state(state, memory, into, head, keys, values, sizes)
        index += 1
        next_end = _end_of(rows, row, index, sizes)
    return index, next_end
