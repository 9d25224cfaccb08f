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
def _load_own(x, gate, at, mask):
    """Inputs of the call's tokens, multiplied by their gate."""
    own = tl.load(x + at, mask=mask, other=0.0)
    if gate is not None:
        factor = tl.load(gate + at, mask=mask, other=0.0)
        own = (own.to(tl.float32) * factor.to(tl.float32)).to(own.dtype)
    return own


@jit
def _load_kept(ring_ptr, source, positions, channels, mask, dims: tl.constexpr):
    """Inputs of earlier calls; 0 before position 0."""
    kept_ptr = ring_ptr + (source * dims.length + positions % dims.length) * dims.channels
    return tl.load(kept_ptr + channels, mask=mask & (positions >= 0), other=0.0)


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
def _load_packed(weight_ptr, channels, inside, dims: tl.constexpr):
    """All weights of each channel as a number, where they are packed."""
    if dims.is_packed:
        words = weight_ptr.to(tl.pointer_type(tl.int64), bitcast=True)
        packed = tl.load(words + channels, mask=inside, other=0)
    else:
        packed = 0
    return packed


@jit
def _factor(weight_ptr, packed, j: tl.constexpr, channels, inside, dims: tl.constexpr):
    """Weight j of each channel."""
    if dims.is_packed:
        bits = (packed >> (16 * j)).to(tl.int16)
        factor = bits.to(weight_ptr.dtype.element_ty, bitcast=True)
    else:
        factor = tl.load(weight_ptr + channels * dims.width + j, mask=inside, other=0.0)
    return factor.to(tl.float32)


@jit
def _convolve(
    x,
    gate,
    ring_ptr,
    weight_ptr,
    packed,
    first,
    begin,
    source,
    tokens,
    channels,
    inside,
    real,
    has_older: tl.constexpr,
    dims: tl.constexpr,
):
    """The sums [T, C] of a row's tokens, and these tokens' own inputs.

    Where `has_older`, some inputs are before the row's first token. All are asked for before the
    first is used: the compiler leaves loads where they are.
    """
    width: tl.constexpr = dims.width
    own, older = (), ()
    for j in tl.static_range(width):
        of = tokens - (width - 1 - j)
        own_at = (first + of) * dims.stride + channels
        own = appended(own, _load_own(x, gate, own_at, real & (of >= 0)))
    if has_older:
        for j in tl.static_range(width - 1):
            of = tokens - (width - 1 - j)
            kept = _load_kept(ring_ptr, source, begin + of, channels, real & (of < 0), dims)
            older = appended(older, kept)
    total = tl.zeros(real.shape, tl.float32)
    for j in tl.static_range(width):
        value = value_at(own, j)
        if has_older and j < width - 1:
            value = tl.where(tokens >= width - 1 - j, value, value_at(older, j))
        factor = _factor(weight_ptr, packed, j, channels, inside, dims)
        total += value.to(tl.float32) * factor
    return total, value_at(own, width - 1)


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
    """A program takes BLOCK_T tokens of a row, all if it `enters` them, and BLOCK_C channels."""
    begin_next(overlap)
    row, offset = tl.program_id(0), tl.program_id(2) * BLOCK_T
    channels = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    inside = channels < dims.channels
    packed = _load_packed(weight_ptr, channels, inside, dims)
    wait_for_last(overlap)
    first, count, begin, slot, source, num_wanted = _load_row(rows, row, num_certain, dims)
    if offset < count:
        tokens = (offset + tl.arange(0, BLOCK_T))[:, None]
        real = inside & (tokens < count)
        total = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
        own = tl.zeros((BLOCK_T, BLOCK_C), x.dtype.element_ty)
        if slot != _NULL:
            if offset < dims.width - 1:
                total, own = _convolve(
                    *(x, before_ptr, ring_ptr, weight_ptr, packed, first, begin, source),
                    *(tokens, channels, inside, real, True, dims),
                )
            else:
                total, own = _convolve(
                    *(x, before_ptr, ring_ptr, weight_ptr, packed, first, begin, source),
                    *(tokens, channels, inside, real, False, dims),
                )
            if bias_ptr is not None:
                total += tl.load(bias_ptr + channels, mask=inside, other=0.0).to(tl.float32)
            if silu:
                total = total / (1.0 + tl.exp(-total))
        total = total.to(out_ptr.dtype.element_ty)
        if after_ptr is not None:
            factor = tl.load(after_ptr + (first + tokens) * dims.stride + channels, mask=real)
            total = total.to(tl.float32) * factor.to(tl.float32)
        address = out_ptr + (first + tokens) * dims.channels + channels
        tl.store(address, total.to(out_ptr.dtype.element_ty), mask=real)
        if enters and slot != _NULL:
            if num_wanted > 0:
                _copy_snapshots(
                    *(x, before_ptr, ring_ptr, rows, row, first, count, begin, source),
                    *(num_certain, channels, inside, dims, 1),
                )
            tl.debug_barrier()  # what was read before is replaced by the live slot's inputs
            if source == slot:  # it has its older inputs already
                positions = begin + tokens
                kept = real & (tokens >= count - dims.length)
                own_ptr = ring_ptr + (slot * dims.length + positions % dims.length) * dims.channels
                tl.store(own_ptr + channels, own, mask=kept)
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
