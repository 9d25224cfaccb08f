# mypy: allow-untyped-defs, allow-incomplete-defs
"""What the recurrence's kernels share: one token's step, replayed drafts, snapshots."""

from __future__ import annotations

from typing import NamedTuple

from engine.kernels.recurrent.matrices import HeadWeights, Matrices, Rule, TokenInputs
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
    inputs: TokenInputs, rule: Rule, weights: HeadWeights, memory: Matrices, snapshots: int
) -> Sizes:
    """The sizes of a call, whose layouts are checked."""
    heads, v = inputs.v.shape[1:]
    key_heads, k = inputs.k.shape[1:]
    assert all(each[0].is_contiguous() for each in inputs if len(each))
    # Of a call's tokens kernels count in 32 bits.
    assert max(each.stride(0) for each in inputs) * len(inputs.v) < 1 << 31
    for each in (*weights, memory.matrix, *memory.drafted):
        assert each is None or each.is_contiguous()
    assert memory.matrix.shape[1:] == (heads, v, k)
    assert weights.dt_bias.shape == inputs.a.shape[1:]
    return Sizes(
        *(heads, key_heads, k, v, memory.drafted.k.shape[1]),
        *(snapshots, padded_lanes(snapshots)),
        *(rule.delta, inputs.a.dim() == 3, weights.skip is not None),
    )


@jit
def unit(x, delta: tl.constexpr):
    """x [..., K] over its length, where the rule asks for that."""
    if delta:
        x *= tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) + _EPS)
    return x


@jit
def advance(state, k, v, decay, beta, delta: tl.constexpr):
    """The state [V, K] after a token that `load_token` loaded."""
    k, v = unit(k.to(tl.float32), delta), v.to(tl.float32)
    state *= tl.exp(decay)
    if delta:
        v -= tl.sum(state * k, 1)
    return state + (beta * v)[:, None] * k


@jit
def load_token(
    k_ptr, v_ptr, decay_ptr, beta_ptr, is_there, head, first, keys, values, sizes: tl.constexpr
):
    """A head's k, v, decay and beta as they are stored, zeros if the token is not there; or its a
    and b, which lie as decays and betas do.

    k and decays by channel are [1, K], at `keys` [1, K], and v is [V], at `values` [V], which
    count from the head's row `first`: what is added to an address is then a constant. The pointers
    are at their token's.
    """
    key_head = head // (sizes.heads // sizes.key_heads)
    channels = keys < tl.where(is_there, sizes.k, 0)
    k = tl.load(k_ptr + key_head * sizes.k + keys, mask=channels, other=0.0)
    inside = values < tl.where(is_there, sizes.v - first, 0)
    v = tl.load(v_ptr + (head * sizes.v + first) + values, mask=inside, other=0.0)
    if sizes.by_channel:
        decay = tl.load(decay_ptr + head * sizes.k + keys, mask=channels, other=0.0)
    else:
        decay = tl.load(decay_ptr + head, mask=is_there, other=0.0)
    return k, v, decay, tl.load(beta_ptr + head, mask=is_there, other=0.0)


@jit
def load_drafted(drafted, slot, position, head, first, keys, values, sizes: tl.constexpr):
    """What a slot keeps of the token at a position, as `load_token` has it."""
    at = slot * sizes.drafted + position % sizes.drafted
    decays: tl.constexpr = sizes.heads * (sizes.k if sizes.by_channel else 1)
    return load_token(
        drafted.k + at * sizes.key_heads * sizes.k,
        drafted.v + at * sizes.heads * sizes.v,
        drafted.decay + at * decays,
        drafted.beta + at * sizes.heads,
        position >= 0,
        head,
        first,
        keys,
        values,
        sizes,
    )


@jit
def load_row(rows, row, sizes: tl.constexpr):
    """What the table says of a row, all asked for at once.

    Returns:
        The source, the positions of its state and of the row's first token, and the ends [S] and
        slots [S] of the row's snapshots.
    """
    lanes = tl.arange(0, sizes.lanes)
    at, inside = row * sizes.snapshots + lanes, lanes < sizes.snapshots
    source = tl.load(rows.sources + row).to(tl.int64)
    begin = tl.load(rows.begins + row)
    replays = tl.load(rows.replays + row)
    ends = tl.load(rows.snapshot_ends + at, mask=inside, other=-1)
    slots = tl.load(rows.snapshot_slots + at, mask=inside, other=_NULL)
    return source, begin - replays, begin, ends, slots


@jit
def load_state(memory, source, begin, head, first, keys, values, sizes: tl.constexpr):
    """A head's state [V, K] that a row begins from: its source's, or zeros at position 0."""
    count = tl.where(begin > 0, sizes.k, 0)
    inside = (values < sizes.v - first)[:, None] & (keys < count)
    matrix_ptr = memory.matrix + ((source * sizes.heads + head) * sizes.v + first) * sizes.k
    return tl.load(matrix_ptr + (values[:, None] * sizes.k + keys), mask=inside, other=0.0)


@jit
def store_state(state, memory, slot, head, first, keys, values, sizes: tl.constexpr):
    """Store a head's state [V, K] in a slot."""
    inside = (values < sizes.v - first)[:, None] & (keys < sizes.k)
    matrix = slot.to(tl.int64) * sizes.heads + head
    matrix_ptr = memory.matrix + (matrix * sizes.v + first) * sizes.k
    tl.store(matrix_ptr + (values[:, None] * sizes.k + keys), state, mask=inside)


@jit
def replay(
    state,
    memory,
    source,
    position,
    begin,
    ends,
    slots,
    head,
    first,
    keys,
    values,
    sizes: tl.constexpr,
):
    """The state after a row's accepted drafts, which `source` keeps, from `position` to `begin`."""
    for at in range(position, begin):
        k, v, decay, beta = load_drafted(
            memory.drafted, source, at, head, first, keys, values, sizes
        )
        state = advance(state, k, v, decay, beta, sizes.delta)
        snapshot(state, memory, ends, slots, at + 1, head, first, keys, values, sizes)
    return state


@jit
def snapshot(state, memory, ends, slots, end, head, first, keys, values, sizes: tl.constexpr):
    """Copy the state to the snapshot that ends at `end`, if a row has one."""
    into = tl.sum(tl.where(ends == end, slots, _NULL), 0)
    if into != _NULL:
        store_state(state, memory, into, head, first, keys, values, sizes)
