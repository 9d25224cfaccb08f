# mypy: allow-untyped-defs, allow-incomplete-defs
"""The kernels of short causal convolutions; `convolution` says what they compute."""

from __future__ import annotations

from typing import NamedTuple

from engine.kernels.recurrent.tuples import appended, value_at
from engine.memory.state_rows import NULL_SLOT
from sampling.device.overlap import begin_next, wait_for_last
from sampling.device.triton_support import constexpr, jit, tl

_NULL = constexpr(NULL_SLOT)


class Dims(NamedTuple):
    """What the kernels are compiled for.

    Attributes:
        stride: from a token's inputs to the next one's. length: of a slot's ring; ring_lanes: the
            same, padded.
        width: inputs of an output. snapshots: that a row may have; lanes: the same, padded.
        is_packed: a channel's weights, four of 16 bits, are loaded as one number.
    """

    channels: int
    stride: int
    length: int
    ring_lanes: int
    width: int
    snapshots: int
    lanes: int
    is_packed: bool


@jit
def _is_wanted(end, into, begin, replays, count, num_certain):
    """Whether a call makes a snapshot: of drafts that a row replays, or of its certain tokens."""
    last = begin + tl.minimum(count, num_certain)
    return (into != _NULL) & (end > begin - replays) & (end <= last)


@jit
def _load_row(rows, row, num_certain, dims: tl.constexpr):
    """What the table says of a row, all asked for at once.

    Returns:
        The row's first token, the number of its tokens, the first one's position, the slots where
        its inputs go and where older ones are, and how many snapshots the call makes of it.
    """
    lanes = tl.arange(0, dims.lanes)
    at, inside = row * dims.snapshots + lanes, lanes < dims.snapshots
    first = tl.load(rows.starts + row).to(tl.int64)
    count = (tl.load(rows.starts + row + 1) - first).to(tl.int32)
    begin = tl.load(rows.begins + row)
    slot = tl.load(rows.slots + row).to(tl.int64)
    source = tl.load(rows.sources + row).to(tl.int64)
    replays = tl.load(rows.replays + row)
    ends = tl.load(rows.snapshot_ends + at, mask=inside, other=-1)
    into = tl.load(rows.snapshot_slots + at, mask=inside, other=_NULL)
    wanted = _is_wanted(ends, into, begin, replays, count, num_certain)
    return first, count, begin, slot, source, tl.sum(wanted.to(tl.int32), 0)


@jit
def _gated(own, factor):
    """Inputs multiplied by their gate, rounded."""
    return (own.to(tl.float32) * factor.to(tl.float32)).to(own.dtype)


@jit
def _load_own(x, gate, at, mask):
    """Inputs of the call's tokens, multiplied by their gate."""
    own = tl.load(x + at, mask=mask, other=0.0)
    return own if gate is None else _gated(own, tl.load(gate + at, mask=mask, other=0.0))


@jit
def _load_kept(ring_ptr, source, positions, channels, mask, dims: tl.constexpr):
    """Inputs of earlier calls, 0 where the mask is not; it holds from position 0 on at most."""
    kept_ptr = ring_ptr + (source * dims.length + positions % dims.length) * dims.channels
    return tl.load(kept_ptr + channels, mask=mask, other=0.0)


@jit
def _copy_inputs(
    x,
    gate,
    ring_ptr,
    first,
    begin,
    source,
    since,
    end,
    into,
    channels,
    inside,
    dims: tl.constexpr,
    LANES: tl.constexpr,  # noqa: N803
):
    """Write a row's inputs of the last positions before `end`, from `since` on, into a slot.

    LANES of the positions are held at once.
    """
    length: tl.constexpr = dims.length  # Triton 3.6 takes no field for the loop's end
    for back in range(0, length, LANES):
        lanes = back + tl.arange(0, LANES)[:, None]
        positions = end - length + lanes
        kept = inside & (lanes < length) & (positions >= tl.maximum(since, 0))
        is_own = positions >= begin
        own_at = (first + positions - begin) * dims.stride + channels
        own = _load_own(x, gate, own_at, kept & is_own)
        older = _load_kept(ring_ptr, source, positions, channels, kept & (positions < begin), dims)
        into_ptr = ring_ptr + (into * length + positions % length) * dims.channels
        tl.store(into_ptr + channels, tl.where(is_own, own, older), mask=kept)


@jit
def _copy_snapshots(
    x,
    gate,
    ring_ptr,
    rows,
    row,
    first,
    count,
    begin,
    source,
    num_certain,
    channels,
    inside,
    dims: tl.constexpr,
    LANES: tl.constexpr,  # noqa: N803
):
    """Write the snapshots that the call makes of a row."""
    replays = tl.load(rows.replays + row)
    snapshots: tl.constexpr = dims.snapshots  # Triton 3.6 takes no field for the loop's end
    for index in range(snapshots):
        end = tl.load(rows.snapshot_ends + row * dims.snapshots + index)
        into = tl.load(rows.snapshot_slots + row * dims.snapshots + index).to(tl.int64)
        if _is_wanted(end, into, begin, replays, count, num_certain):
            _copy_inputs(
                *(x, gate, ring_ptr, first, begin, source, 0, end, into),
                *(channels, inside, dims, LANES),
            )


@jit
def _load_weights(weight_ptr, channels, inside, dims: tl.constexpr):
    """The weights of an output's inputs, float32 [1, C] each."""
    width: tl.constexpr = dims.width  # Triton 3.6 takes no field for the loop's end
    packed, weights = None, ()
    if dims.is_packed:
        words = weight_ptr.to(tl.pointer_type(tl.int64), bitcast=True)
        packed = tl.load(words + channels, mask=inside, other=0)
    for j in tl.static_range(width):
        if dims.is_packed:
            bits = (packed >> (16 * j)).to(tl.int16)
            weight = bits.to(weight_ptr.dtype.element_ty, bitcast=True)
        else:
            weight = tl.load(weight_ptr + channels * dims.width + j, mask=inside, other=0.0)
        weights = appended(weights, weight.to(tl.float32))
    return weights


@jit
def _all_if(condition, channels, dims: tl.constexpr):
    """The mask of all channels that there are, if a condition holds."""
    return channels < tl.where(condition, dims.channels, 0)


@jit
def _inputs_of(
    x,
    gate,
    ring_ptr,
    first,
    count,
    begin,
    source,
    offset,
    slot,
    channels,
    dims: tl.constexpr,
    BLOCK_T: tl.constexpr,  # noqa: N803
):
    """The inputs [1, C] of a row's BLOCK_T tokens from `offset` on, after those of tokens before.

    All are asked for before the first is used: the compiler leaves loads where they are.
    """
    before: tl.constexpr = dims.width - 1
    own, factors, older, inputs = (), (), (), ()
    for t in tl.static_range(BLOCK_T + before):
        of = offset + t - before
        mask = _all_if((slot != _NULL) & (of >= 0) & (of < count), channels, dims)
        at = (first + of) * dims.stride + channels
        own = appended(own, tl.load(x + at, mask=mask, other=0.0))
        if gate is not None:
            factors = appended(factors, tl.load(gate + at, mask=mask, other=0.0))
    for t in tl.static_range(before):
        of = offset + t - before
        is_there = (slot != _NULL) & (of < 0) & (begin + of >= 0)
        mask = _all_if(is_there, channels, dims)
        kept = _load_kept(ring_ptr, source, begin + of, channels, mask, dims)
        older = appended(older, kept)
    for t in tl.static_range(BLOCK_T + before):
        value = value_at(own, t)
        if gate is not None:
            value = _gated(value, value_at(factors, t))
        if t < before:
            value = tl.where(offset + t < before, value_at(older, t), value)
        inputs = appended(inputs, value)
    return inputs


@jit
def _convolve(inputs, weights, bias, t: tl.constexpr, silu: tl.constexpr, dims: tl.constexpr):
    """The sum [1, C] of a token's inputs, those from t on."""
    width: tl.constexpr = dims.width
    total = tl.zeros(weights[0].shape, tl.float32)
    for j in tl.static_range(width):
        total += value_at(inputs, t + j).to(tl.float32) * value_at(weights, j)
    if bias is not None:
        total += bias
    return total / (1.0 + tl.exp(-total)) if silu else total


@jit(do_not_specialize=["num_certain"])
def convolution_kernel(
    x,
    before_ptr,
    after_ptr,
    weight_ptr,
    bias_ptr,
    ring_ptr,
    rows,
    out_ptr,
    num_certain,
    dims: tl.constexpr,
    silu: tl.constexpr,
    enters: tl.constexpr,
    BLOCK_T: tl.constexpr,  # noqa: N803
    BLOCK_C: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes BLOCK_T tokens of a row, all if it `enters` them, and BLOCK_C channels.

    A thread has its channels' inputs of all these tokens, each loaded once.
    """
    begin_next(overlap)
    row, offset = tl.program_id(0), tl.program_id(2) * BLOCK_T
    channels = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    inside = channels < dims.channels
    weights, bias = _load_weights(weight_ptr, channels, inside, dims), None
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + channels, mask=inside, other=0.0).to(tl.float32)
    wait_for_last(overlap)
    first, count, begin, slot, source, num_wanted = _load_row(rows, row, num_certain, dims)
    if offset < count:
        inputs = _inputs_of(
            *(x, before_ptr, ring_ptr, first, count, begin, source, offset, slot),
            *(channels, dims, BLOCK_T),
        )
        for t in tl.static_range(BLOCK_T):
            real = _all_if(offset + t < count, channels, dims)
            total = tl.where(slot != _NULL, _convolve(inputs, weights, bias, t, silu, dims), 0.0)
            total = total.to(out_ptr.dtype.element_ty)
            if after_ptr is not None:
                after_at = (first + offset + t) * dims.stride + channels
                total = _gated(total, tl.load(after_ptr + after_at, mask=real, other=0.0))
            tl.store(out_ptr + (first + offset + t) * dims.channels + channels, total, mask=real)
        if enters and slot != _NULL:
            if num_wanted > 0:
                _copy_snapshots(
                    *(x, before_ptr, ring_ptr, rows, row, first, count, begin, source),
                    *(num_certain, channels, inside, dims, 1),
                )
            tl.debug_barrier()  # what was read before is replaced by the live slot's inputs
            if source == slot:  # it has its older inputs already
                for t in tl.static_range(BLOCK_T):
                    kept = _all_if((t < count) & (t >= count - dims.length), channels, dims)
                    at = (slot * dims.length + (begin + t) % dims.length) * dims.channels
                    own = value_at(inputs, t + dims.width - 1)
                    tl.store(ring_ptr + at + channels, own, mask=kept)
            else:
                _copy_inputs(
                    *(x, before_ptr, ring_ptr, first, begin, source, 0, begin + count, slot),
                    *(channels, inside, dims, 1),
                )


@jit(do_not_specialize=["num_certain"])
def enter_kernel(
    x,
    before_ptr,
    ring_ptr,
    rows,
    num_certain,
    dims: tl.constexpr,
    BLOCK_C: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program enters BLOCK_C channels of a row."""
    begin_next(overlap)
    row = tl.program_id(0)
    channels = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    inside = channels < dims.channels
    wait_for_last(overlap)
    first, count, begin, slot, source, num_wanted = _load_row(rows, row, num_certain, dims)
    if slot != _NULL:
        if num_wanted > 0:
            _copy_snapshots(
                *(x, before_ptr, ring_ptr, rows, row, first, count, begin, source),
                *(num_certain, channels, inside, dims, dims.ring_lanes),
            )
        tl.debug_barrier()  # what was read before is replaced by the live slot's inputs
        since = tl.where(source == slot, begin, 0)  # it has its older inputs already
        _copy_inputs(
            *(x, before_ptr, ring_ptr, first, begin, source, since, begin + count, slot),
            *(channels, inside, dims, dims.ring_lanes),
        )
