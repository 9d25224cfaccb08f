# mypy: allow-untyped-defs, allow-incomplete-defs
"""Short causal convolutions by channel, over rows that continue where their last step ended.

y[p, c] = Σ_j weight[c, j] x[p - W + 1 + j, c] + bias[c], then silu where a layer has it; computed
in float32 and rounded once. Inputs and outputs may be multiplied by gates, each rounded (LFM2).

Inputs of earlier steps are in a ring by position: position p's is at p % L of its slot. With
L = W + k, k the drafts of a step, a step's inputs never replace one that it reads, and those of
refused drafts are replaced before they are read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.invariant.functions import elementwise
from engine.memory.state_rows import NULL_SLOT, Extent, StateRows, entered
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import constexpr, jit, tl, triton

CHANNELS = 128
"""The channels of a program."""
TOKENS = 32
"""The most tokens of a program."""
_NULL = constexpr(NULL_SLOT)


class Convolution(NamedTuple):
    """A convolution's weights: weight [C, W], bias [C] or None, and whether silu follows."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    silu: bool = True


class Gates(NamedTuple):
    """Columns [T, C] that lie as x does in a product: they multiply x, and what is convolved."""

    before: torch.Tensor
    after: torch.Tensor


def ring_length(width: int, num_drafts: int) -> int:
    """The positions of a slot's ring, for a convolution over `width` inputs."""
    return width + num_drafts


def causal_convolution(
    x: torch.Tensor,
    kernel: Convolution,
    ring: torch.Tensor,
    rows: StateRows,
    extent: Extent,
    gates: Gates | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convolve x [T, C], whose last dimension has unit stride → [T, C]; enter it into the ring.

    Args:
        ring: [num_slots, L, C], of x's dtype; inputs by position. Its rows' live slots and
            snapshots are written.
        out: is written where rows have tokens, zeros of rows without a slot; None makes one.
    """
    if x.is_cuda:
        return causal_convolution_triton(x, kernel, ring, rows, extent, gates, out)
    return causal_convolution_torch(x, kernel, ring, rows, extent, gates, out)


def causal_convolution_torch(
    x: torch.Tensor,
    kernel: Convolution,
    ring: torch.Tensor,
    rows: StateRows,
    extent: Extent,
    gates: Gates | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    x = x if gates is None else gates.before * x
    out = torch.empty_like(x) if out is None else out
    starts, ends = rows.starts.tolist(), entered(rows, extent).tolist()
    for row, (slot, source, begin, replays) in enumerate(
        zip(
            *(each.tolist() for each in (rows.slots, rows.sources, rows.begins, rows.replays)),
            strict=True,
        )
    ):
        own = slice(starts[row], starts[row + 1])
        if slot == NULL_SLOT:
            out[own] = 0.0
            continue
        inputs = x[own]
        line = _line(inputs, ring[source], begin)
        convolved = _convolve(line, kernel, len(inputs))
        out[own] = convolved if gates is None else convolved * gates.after[own]
        finish = begin + len(inputs)
        for end, into in zip(
            rows.snapshot_ends[row].tolist(), rows.snapshot_slots[row].tolist(), strict=True
        ):
            if into != NULL_SLOT and begin - replays < end <= ends[row]:
                _enter(line[: len(line) - finish + end], end, ring[into])
        _enter(line, finish, ring[slot])
    return out


def _line(inputs: torch.Tensor, ring: torch.Tensor, begin: int) -> torch.Tensor:
    """The inputs of a row [L + n, C]: those before it, zeros before position 0, and its own."""
    before = torch.arange(begin - len(ring), begin)
    history = torch.where((before >= 0)[:, None], ring[before % len(ring)], 0.0)
    return torch.cat([history, inputs])


def _convolve(line: torch.Tensor, kernel: Convolution, count: int) -> torch.Tensor:
    """The outputs of the last `count` inputs of `line`."""
    width = kernel.weight.shape[1]
    used = line[len(line) - count - width + 1 :].float()
    out = sum(used[j : j + count] * kernel.weight[:, j].float() for j in range(width))
    assert isinstance(out, torch.Tensor)
    if kernel.bias is not None:
        out = out + kernel.bias.float()
    return (elementwise(F.silu, out) if kernel.silu else out).to(line.dtype)


def _enter(line: torch.Tensor, end: int, ring: torch.Tensor) -> None:
    """Write the last inputs of `line`, which ends before position `end`, into a slot's ring."""
    last = line[-len(ring) :]
    positions = torch.arange(end - len(last), end)
    kept = positions >= 0
    ring[positions[kept] % len(ring)] = last[kept]


@jit
def _load_input(x, gate, ring_ptr, rows, row, positions, channels, inside, dims: tl.constexpr):
    """The row's inputs at `positions` before its end; 0 before position 0."""
    begin = tl.load(rows.begins + row)
    first = tl.load(rows.starts + row).to(tl.int64)
    source = tl.load(rows.sources + row).to(tl.int64)
    is_own = positions >= begin
    own_at = (first + positions - begin) * dims.stride + channels
    own = tl.load(x + own_at, mask=inside & is_own, other=0.0)
    if gate is not None:
        factor = tl.load(gate + own_at, mask=inside & is_own, other=0.0)
        own = (own.to(tl.float32) * factor.to(tl.float32)).to(own.dtype)
    is_kept = inside & (positions >= 0) & (positions < begin)
    kept_ptr = ring_ptr + (source * dims.length + positions % dims.length) * dims.channels
    return tl.where(is_own, own, tl.load(kept_ptr + channels, mask=is_kept, other=0.0))


@jit
def _copy_inputs(
    x, gate, ring_ptr, rows, row, from_position, end, slot, channels, inside, dims: tl.constexpr
):
    """Write a row's inputs of the last positions before `end`, from one on, into `slot`."""
    for back in range(dims.length):
        positions = end - dims.length + back + 0 * channels.to(tl.int64)
        kept = inside & (positions >= tl.maximum(from_position, 0))
        value = _load_input(x, gate, ring_ptr, rows, row, positions, channels, kept, dims)
        address = ring_ptr + (slot * dims.length + positions % dims.length) * dims.channels
        tl.store(address + channels, value, mask=kept)


@jit
def _enter_inputs(
    x, gate, ring_ptr, rows, row, channels, inside, num_snapshots, num_certain, dims: tl.constexpr
):
    """Write a row's snapshots, then its live slot, which is not the null slot."""
    slot = tl.load(rows.slots + row).to(tl.int64)
    count = tl.load(rows.starts + row + 1) - tl.load(rows.starts + row)
    begin = tl.load(rows.begins + row)
    state_end = begin - tl.load(rows.replays + row)
    for index in range(num_snapshots):
        end = tl.load(rows.snapshot_ends + row * num_snapshots + index)
        into = tl.load(rows.snapshot_slots + row * num_snapshots + index).to(tl.int64)
        if (into != _NULL) & (end > state_end) & (end <= begin + tl.minimum(count, num_certain)):
            _copy_inputs(x, gate, ring_ptr, rows, row, 0, end, into, channels, inside, dims)
    tl.debug_barrier()  # what was read before is replaced by the live slot's inputs
    is_live = tl.load(rows.sources + row) == slot  # it has its older inputs already
    since = tl.where(is_live, begin, 0)
    _copy_inputs(x, gate, ring_ptr, rows, row, since, begin + count, slot, channels, inside, dims)


@jit(do_not_specialize=["num_certain"])
def _convolution_kernel(
    x,
    before_ptr,
    after_ptr,
    weight_ptr,
    bias_ptr,
    ring_ptr,
    rows,
    out_ptr,
    num_snapshots,
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
    row = tl.program_id(0)
    channels = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    inside = channels < dims.channels
    wait_for_last(overlap)
    first = tl.load(rows.starts + row).to(tl.int64)
    count = tl.load(rows.starts + row + 1) - first
    offset = tl.program_id(2) * BLOCK_T
    if offset < count:
        begin = tl.load(rows.begins + row)
        tokens = (offset + tl.arange(0, BLOCK_T))[:, None]
        real = inside & (tokens < count)
        total = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
        if tl.load(rows.slots + row) != _NULL:
            width: tl.constexpr = dims.width  # Triton 3.6 takes no field for the loop's end
            for j in tl.static_range(width):
                positions = begin + tokens - (width - 1) + j
                value = _load_input(
                    x, before_ptr, ring_ptr, rows, row, positions, channels, real, dims
                )
                factor = tl.load(weight_ptr + channels * dims.width + j, mask=inside, other=0.0)
                total += value.to(tl.float32) * factor.to(tl.float32)
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
        if enters and tl.load(rows.slots + row) != _NULL:
            flat = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
            _enter_inputs(
                x,
                before_ptr,
                ring_ptr,
                rows,
                row,
                flat,
                flat < dims.channels,
                num_snapshots,
                num_certain,
                dims,
            )


@jit(do_not_specialize=["num_certain"])
def _enter_kernel(
    x,
    before_ptr,
    ring_ptr,
    rows,
    num_snapshots,
    num_certain,
    dims: tl.constexpr,
    BLOCK_C: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program enters BLOCK_C channels of a row."""
    begin_next(overlap)
    row = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channels < dims.channels
    wait_for_last(overlap)
    if tl.load(rows.slots + row) != _NULL:
        _enter_inputs(
            x, before_ptr, ring_ptr, rows, row, channels, inside, num_snapshots, num_certain, dims
        )


class _Dims(NamedTuple):
    """What the kernels are compiled for; `stride` is from a token's inputs to the next one's."""

    channels: int
    stride: int
    length: int
    width: int


def causal_convolution_triton(
    x: torch.Tensor,
    kernel: Convolution,
    ring: torch.Tensor,
    rows: StateRows,
    extent: Extent,
    gates: Gates | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `causal_convolution` in two kernels, or in one of rows that decode."""
    num_rows, num_channels = len(rows.slots), x.shape[1]
    assert x.stride(1) == 1
    assert ring.is_contiguous()
    assert kernel.weight.is_contiguous()
    before, after = gates or (None, None)
    assert all(each is None or each.stride() == x.stride() for each in (before, after))
    if out is None:
        out = torch.empty((len(x), num_channels), dtype=x.dtype, device=x.device)
    assert out.is_contiguous()
    dims = _Dims(num_channels, x.stride(0), ring.shape[1], kernel.weight.shape[1])
    enters = extent.num_certain is not None and extent.max_len <= TOKENS
    block_t = triton.next_power_of_2(extent.max_len) if enters else TOKENS
    blocks_c = triton.cdiv(num_channels, CHANNELS)
    num_snapshots = rows.snapshot_ends.shape[1]
    num_certain = extent.max_len if extent.num_certain is None else extent.num_certain
    _convolution_kernel[(num_rows, blocks_c, triton.cdiv(extent.max_len, block_t))](
        x,
        before,
        after,
        kernel.weight,
        kernel.bias,
        ring,
        rows,
        out,
        num_snapshots,
        num_certain,
        dims=dims,
        silu=kernel.silu,
        enters=enters,
        BLOCK_T=block_t,
        BLOCK_C=CHANNELS,
        num_warps=4,
        **overlap_of(x),
    )
    if not enters:
        _enter_kernel[(num_rows, blocks_c)](
            x,
            before,
            ring,
            rows,
            num_snapshots,
            num_certain,
            dims=dims,
            BLOCK_C=CHANNELS,
            num_warps=4,
            **overlap_of(x),
        )
    return out
