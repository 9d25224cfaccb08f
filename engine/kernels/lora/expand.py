# mypy: allow-untyped-defs, allow-incomplete-defs
"""The second product of an adapter: its rank to outputs, added to those of the base."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch

from engine.kernels.lora.groups import TILE, TokenGroups
from engine.kernels.lora.shrink import Shrunk
from engine.kernels.lora.stacks import Stacks
from engine.kernels.skinny import gated_with
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

COLUMNS, GATED_COLUMNS, WARPS = 128, 64, 2
"""Outputs that a program computes at most, those of a gate, and its warps where an adapter has at
most `NARROW` bytes of ranks: more programs have their loads on their way at once. Others have
`WIDE_WARPS`, for their registers."""
NARROW, WIDE_WARPS = 32, 4
MOST_PROGRAMS = 5000
"""Programs of a launch, of which a GPU runs some 1,000 at once."""
MOST_RANKS = 32
"""Ranks of a turn at most."""


def first_blocks(bounds: Sequence[int]) -> tuple[int, ...]:
    """The first of the blocks of outputs of each module between `bounds`, and their number."""
    counts = (triton.cdiv(end - begin, COLUMNS) for begin, end in pairwise(bounds))
    return tuple(accumulate(counts, initial=0))


@jit
def _block_at(index, bounds: tl.constexpr, firsts: tl.constexpr, COLUMNS: tl.constexpr):  # noqa: N803
    """The module of a block, the block's first output, and the one after the module's last."""
    module, first, end = index * 0, bounds[0] + index * COLUMNS, bounds[1] + index * 0
    for each in tl.static_range(1, len(bounds) - 1):
        is_later = index >= firsts[each]
        module = tl.where(is_later, each, module)
        first = tl.where(is_later, bounds[each] + (index - firsts[each]) * COLUMNS, first)
        end = tl.where(is_later, bounds[each + 1], end)
    return module, first, end


class _Places(NamedTuple):
    """Where a program reads what a tile's inputs were shrunk to; values within the kernel."""

    sums: Any
    place: Any  # [ROWS]
    here: Any  # [ROWS]
    num_places: Any


@jit
def _lines(at, module, scale, num_spans: tl.constexpr, SPANS: tl.constexpr):  # noqa: N803
    """Where a module's sums of a tile's inputs are by spans, and which there are [ROWS, SPANS]."""
    is_read = at.here & (tl.zeros(at.here.shape, tl.float32) + scale != 0)
    span = tl.arange(0, SPANS)
    line = (module * at.num_places + at.place).to(tl.int64)[:, None] * num_spans + span[None, :]
    return line, is_read[:, None] & (span < num_spans)[None, :]


@jit
def _sums(at, lines, start, RANK: tl.constexpr, STEP: tl.constexpr):  # noqa: N803
    """Load what a tile's inputs were shrunk to, by spans: [ROWS, SPANS, STEP]."""
    line, mask = lines
    places = line[:, :, None] * RANK + (start + tl.arange(0, STEP))[None, None, :]
    return tl.load(at.sums + places, mask=mask[:, :, None], other=0.0)


@jit
def _sum_of(base, delta, scale):
    """What a product is with an adapter that changes its module, or leaves it alone."""
    wide = base.to(tl.float32)
    return tl.where(scale != 0, wide + delta * scale, wide).to(base.dtype)


@jit(do_not_specialize=["num_tiles"])
def _expand_kernel(
    out,
    sums,
    squares,
    own_scales,
    b,
    tokens,
    slots,
    out_stride,
    slot_stride,
    expert_stride,
    num_tiles,
    eps,
    bounds: tl.constexpr,
    firsts: tl.constexpr,
    num_inputs: tl.constexpr,
    num_experts: tl.constexpr,
    num_spans: tl.constexpr,
    RANK: tl.constexpr,  # noqa: N803
    STEP: tl.constexpr,  # noqa: N803
    SPANS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program adds to some blocks of a tile's outputs.

    Its loads are two in a chain: what the tile has, then all that is multiplied and added.
    """
    begin_next(overlap)
    wait_for_last(overlap)
    num_modules: tl.constexpr = len(bounds) - 1
    num_blocks: tl.constexpr = firsts[num_modules]
    own_tile = tl.program_id(0)
    place = own_tile * ROWS + tl.arange(0, ROWS)
    slot, token = tl.load(slots + own_tile).to(tl.int64), tl.load(tokens + place)
    own = b + slot // num_experts * slot_stride + slot % num_experts * expert_stride
    r = tl.arange(0, STEP)
    for index in range(tl.program_id(1), num_blocks, tl.num_programs(1)):
        module, first, end = _block_at(index, bounds, firsts, COLUMNS)
        scale = tl.load(own_scales + module * num_tiles + own_tile)
        if scale != 0:
            n, here = first + tl.arange(0, COLUMNS), token >= 0
            inside = n < end
            mask = here[:, None] & inside[None, :]
            at_out = out + token.to(tl.int64)[:, None] * out_stride + n[None, :]
            base = tl.load(at_out, mask=mask, other=0.0)
            at = _Places(sums, place, here, num_tiles * ROWS)
            lines = _lines(at, module, scale, num_spans, SPANS)
            if squares is not None:
                squares_of = tl.load(squares + lines[0], mask=lines[1], other=0.0)
            own_b = own + n[None, :].to(tl.int64) * RANK + r[:, None]
            delta = tl.zeros((ROWS, COLUMNS), tl.float32)
            for start in range(0, RANK, STEP):
                sums_of = _sums(at, lines, start, RANK, STEP)
                tile = tl.load(own_b + start, mask=inside[None, :], other=0.0)
                shrunk = tl.sum(sums_of, 1)
                if squares is not None:
                    shrunk *= tl.rsqrt(tl.sum(squares_of, 1) / num_inputs + eps)[:, None]
                delta = tl.dot(shrunk.to(tile.dtype), tile, delta, input_precision="ieee")
            tl.store(at_out, _sum_of(base, delta, scale), mask=mask)


@jit(do_not_specialize=["num_tiles", "num_tokens"])
def _expand_gated_kernel(
    inner,
    gate_up,
    sums,
    own_scales,
    b,
    tokens,
    slots,
    by_token,
    slot_stride,
    num_tiles,
    num_tokens,
    width: tl.constexpr,
    num_inputs: tl.constexpr,
    num_spans: tl.constexpr,
    RANK: tl.constexpr,  # noqa: N803
    STEP: tl.constexpr,  # noqa: N803
    SPANS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program joins some blocks of a tile's gates and values, or of rows without an adapter."""
    begin_next(overlap)
    wait_for_last(overlap)
    tile = tl.program_id(0)
    place, num_places = tile * ROWS + tl.arange(0, ROWS), num_tiles * ROWS
    slot = tl.full((), 0, tl.int64)
    of_gate, of_up = tl.full((), 0, tl.float32), tl.full((), 0, tl.float32)
    if tile < num_tiles:
        slot = tl.load(slots + tile).to(tl.int64)
        of_gate, of_up = tl.load(own_scales + tile), tl.load(own_scales + num_tiles + tile)
        token = tl.load(tokens + place)
        here = token >= 0
    else:
        token = place - num_places
        here = tl.load(by_token + token, mask=token < num_tokens, other=0) < 0
    if tl.max(here.to(tl.int32), 0) == 0:
        return
    at = _Places(sums, place, here, num_places)
    dtype = inner.dtype.element_ty
    r = tl.arange(0, STEP)
    for begin in range(tl.program_id(1) * COLUMNS, width, tl.num_programs(1) * COLUMNS):
        n = begin + tl.arange(0, COLUMNS)
        inside = n < width
        mask = here[:, None] & inside[None, :]
        at_gate = gate_up + token.to(tl.int64)[:, None] * (2 * width) + n[None, :]
        if (of_gate != 0) | (of_up != 0):
            gate = tl.load(at_gate, mask=mask, other=0.0)
            up = tl.load(at_gate + width, mask=mask, other=0.0)
            own = b + slot * slot_stride + n[None, :].to(tl.int64) * RANK + r[:, None]
            gate_lines = _lines(at, 0, of_gate, num_spans, SPANS)
            up_lines = _lines(at, 1, of_up, num_spans, SPANS)
            to_gate = tl.zeros((ROWS, COLUMNS), tl.float32)
            to_up = tl.zeros((ROWS, COLUMNS), tl.float32)
            for start in range(0, RANK, STEP):
                of_first = _sums(at, gate_lines, start, RANK, STEP)
                of_last = _sums(at, up_lines, start, RANK, STEP)
                # With `other` the compiler waits for it before the rest is asked for.
                first = tl.load(own + start, mask=inside[None, :])
                last = tl.load(own + width * RANK + start, mask=inside[None, :], other=0.0)
                shrunk = tl.sum(of_first, 1).to(dtype)
                first = tl.where(inside[None, :], first, 0.0)
                to_gate = tl.dot(shrunk, first, to_gate, input_precision="ieee")
                shrunk = tl.sum(of_last, 1).to(dtype)
                to_up = tl.dot(shrunk, last, to_up, input_precision="ieee")
            gate = _sum_of(gate, to_gate, of_gate)
            up = _sum_of(up, to_up, of_up)
        else:
            gate = tl.load(at_gate, mask=mask, other=0.0)
            up = tl.load(at_gate + width, mask=mask, other=0.0)
        at_inner = inner + token.to(tl.int64)[:, None] * width + n[None, :]
        tl.store(at_inner, gated_with(gate, up), mask=mask)


def _num_programs(num_tiles: int, num_blocks: int) -> int:
    """Programs that share the blocks of a tile: all tiles have about `MOST_PROGRAMS` at most.

    In a graph most tiles of many adapters are empty, and a program takes its time to see that.
    """
    return min(num_blocks, max(MOST_PROGRAMS // num_tiles, 1))


def _warps(rank: int, b: torch.Tensor) -> int:
    return WARPS if rank * b.itemsize <= NARROW else WIDE_WARPS


def expand_triton(
    out: torch.Tensor, shrunk: Shrunk, stacks: Stacks, groups: TokenGroups, **launch: Any
) -> None:
    """Add B times what was shrunk to out [T, out].

    Args:
        launch: options of the launch; none are those of a kernel that follows on the last.
    """
    _, _, num_spans, rank = shrunk.sums.shape
    b = stacks.b
    assert out.stride(1) == 1
    num_tiles, firsts = len(groups.slots), first_blocks(stacks.bounds)
    _expand_kernel[(num_tiles, _num_programs(num_tiles, firsts[-1]))](
        out,
        shrunk.sums,
        shrunk.squares,
        shrunk.scales,
        b,
        groups.tokens,
        groups.slots,
        out.stride(0),
        b.stride(0),
        b.stride(1),
        num_tiles,
        shrunk.eps,
        bounds=stacks.bounds,
        firsts=firsts,
        num_inputs=shrunk.num_inputs,
        num_experts=b.shape[1],
        num_spans=num_spans,
        RANK=rank,
        STEP=min(rank, MOST_RANKS),
        SPANS=triton.next_power_of_2(num_spans),
        ROWS=TILE,
        COLUMNS=COLUMNS,
        num_warps=_warps(rank, b),
        **(launch or overlap_of(out)),
    )


def expand_gated_triton(
    gate_up: torch.Tensor, shrunk: Shrunk, stacks: Stacks, groups: TokenGroups, **launch: Any
) -> torch.Tensor:
    """Compute silu(gate) * up [T, m] of gate_up [T, 2 * m] and what adapters add to it.

    Args:
        shrunk: of inputs that were normed.
        launch: as of `expand_triton`.
    """
    num_tokens, width = len(gate_up), gate_up.shape[1] // 2
    b, num_tiles = stacks.b, len(groups.slots)
    num_modules, _, num_spans, rank = shrunk.sums.shape
    assert groups.by_token is not None
    assert gate_up.is_contiguous()
    assert (num_modules, shrunk.squares) == (2, None)
    inner = torch.empty((num_tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    num_own = num_tiles + triton.cdiv(num_tokens, TILE)
    grid = (num_own, _num_programs(num_own, triton.cdiv(width, GATED_COLUMNS)))
    _expand_gated_kernel[grid](
        inner,
        gate_up,
        shrunk.sums,
        shrunk.scales,
        b,
        groups.tokens,
        groups.slots,
        groups.by_token,
        b.stride(0),
        num_tiles,
        num_tokens,
        width=width,
        num_inputs=shrunk.num_inputs,
        num_spans=num_spans,
        RANK=rank,
        STEP=min(rank, MOST_RANKS),
        SPANS=triton.next_power_of_2(num_spans),
        ROWS=TILE,
        COLUMNS=GATED_COLUMNS,
        num_warps=_warps(rank, b),
        **(launch or overlap_of(gate_up)),
    )
    return inner
