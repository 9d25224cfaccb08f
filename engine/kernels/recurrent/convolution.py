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
from engine.kernels.recurrent.convolution_kernels import Dims, convolution_kernel, enter_kernel
from engine.memory.state_rows import NULL_SLOT, Extent, StateRows, entered
from sampling.device.overlap import overlap_of
from sampling.device.triton_support import padded_lanes, triton


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


class TileShape(NamedTuple):
    """The shape of a launch: tokens, channels and warps of each program."""

    tokens: int
    channels: int
    warps: int


PROMPT = TileShape(8, 512, 4)
"""Of rows that prefill, whose inputs enter the ring in another kernel."""
ENTERING = TileShape(1, 256, 4)
"""Of that kernel."""
MOST_ENTERED = 32
"""The most tokens of rows that decode which a program convolves and enters."""
FEW, MANY, MANY_OF_DRAFTS = TileShape(1, 128, 1), TileShape(1, 512, 2), TileShape(1, 256, 2)
"""Channels and warps of a program of rows that decode: of few and of many, for one token each or
for several."""
ENOUGH = 264
"""The programs of many channels that there are at least: two for each processor of an H200."""


def decode_shape(num_rows: int, num_channels: int, max_len: int) -> TileShape:
    """The launch's shape for rows that decode; no bits depend on it.

    Few rows take small programs, so that all processors have some; of many, programs begin at too
    low a rate.
    """
    many = MANY if max_len == 1 else MANY_OF_DRAFTS
    shape = many if num_rows * triton.cdiv(num_channels, many.channels) >= ENOUGH else FEW
    return shape._replace(tokens=triton.next_power_of_2(max_len))


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
    length, width, snapshots = ring.shape[1], kernel.weight.shape[1], rows.snapshot_ends.shape[1]
    dims = Dims(
        *(num_channels, x.stride(0), length, padded_lanes(length), width),
        *(snapshots, padded_lanes(snapshots), width == 4 and kernel.weight.itemsize == 2),
    )
    enters = extent.num_certain is not None and extent.max_len <= MOST_ENTERED
    shape = decode_shape(num_rows, num_channels, extent.max_len) if enters else PROMPT
    num_certain = extent.max_len if extent.num_certain is None else extent.num_certain
    blocks = triton.cdiv(num_channels, shape.channels), triton.cdiv(extent.max_len, shape.tokens)
    convolution_kernel[(num_rows, *blocks)](
        *(x, before, after, kernel.weight, kernel.bias, ring, rows, out, num_certain),
        dims=dims,
        silu=kernel.silu,
        enters=enters,
        BLOCK_T=shape.tokens,
        BLOCK_C=shape.channels,
        num_warps=shape.warps,
        **overlap_of(x),
    )
    if not enters:
        enter_kernel[(num_rows, triton.cdiv(num_channels, ENTERING.channels))](
            *(x, before, ring, rows, num_certain),
            dims=dims,
            BLOCK_C=ENTERING.channels,
            num_warps=ENTERING.warps,
            **overlap_of(x),
        )
    return out
