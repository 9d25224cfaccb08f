# mypy: allow-untyped-defs, allow-incomplete-defs
"""The second product of an adapter: its rank to outputs, added to those of the base."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.kernels.lora.groups import TILE, TokenGroups
from engine.kernels.lora.shrink import Shrunk
from engine.kernels.lora.stacks import Stacks
from engine.kernels.skinny import gated_with
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

COLUMNS = 128
"""Outputs that a program computes at most."""
MOST_PROGRAMS = 5000
"""Programs of a launch, of which a GPU runs some 2,000 at once."""
MOST_RANKS = 64
"""Ranks of a turn at most."""


def output_blocks(bounds: Sequence[int]) -> npt.NDArray[np.int32]:
    """The blocks of outputs that programs compute, as of `Stacks`, for modules between `bounds`."""
    blocks = [
        (module, first, min(first + COLUMNS, end))
        for module, (begin, end) in enumerate(pairwise(bounds))
        for first in range(begin, end, COLUMNS)
    ]
    return np.array(blocks, dtype=np.int32).reshape(-1, 3)


class _Places(NamedTuple):
    """Where a program reads what a tile's inputs were shrunk to; values within the kernel."""

    sums: Any
    squares: Any
    module: Any
    place: Any  # [ROWS]
    num_places: Any
    eps: Any


@jit
def _delta(
    at,
    b,
    scale,
    n,
    inside,
    num_inputs: tl.constexpr,
    num_spans: tl.constexpr,
    num_modules: tl.constexpr,
    RANK: tl.constexpr,  # noqa: N803
    STEP: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    """What a tile's adapter adds to outputs n [COLUMNS]; b is that of the adapter."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    if scale != 0:
        factor = tl.zeros((ROWS,), tl.float32) + scale
        if at.squares is not None:
            square = tl.zeros((ROWS,), tl.float32)
            for each in tl.static_range(num_spans):
                row = (each * num_modules + at.module) * at.num_places
                square += tl.load(at.squares + row + at.place)
            root = tl.rsqrt(square / num_inputs + at.eps)
        for start in range(0, RANK, STEP):
            r = start + tl.arange(0, STEP)
            own = b + n[None, :].to(tl.int64) * RANK + r[:, None]
            tile = tl.load(own, mask=inside[None, :], other=0.0)
            shrunk = tl.zeros((ROWS, STEP), tl.float32)
            for each in tl.static_range(num_spans):
                row = (each * num_modules + at.module) * at.num_places
                line = (row + at.place).to(tl.int64) * RANK
                shrunk += tl.load(at.sums + line[:, None] + r[None, :])
            if at.squares is not None:
                shrunk *= root[:, None]
            total = tl.dot(shrunk.to(tile.dtype), tile, total, input_precision="ieee")
        total *= factor[:, None]
    return total


@jit(do_not_specialize=["num_places", "num_blocks"])
def _expand_kernel(
    out,
    sums,
    squares,
    b,
    scales,
    blocks,
    tokens,
    slots,
    out_stride,
    slot_stride,
    expert_stride,
    scale_stride,
    num_places,
    num_blocks,
    eps,
    num_inputs: tl.constexpr,
    num_experts: tl.constexpr,
    num_spans: tl.constexpr,
    num_modules: tl.constexpr,
    RANK: tl.constexpr,  # noqa: N803
    STEP: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program adds to some blocks of a tile's outputs."""
    begin_next(overlap)
    wait_for_last(overlap)
    slot = tl.load(slots + tl.program_id(0)).to(tl.int64)
    if slot < 0:
        return
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.load(tokens + place)
    expert, adapter = slot % num_experts, slot // num_experts
    own = b + adapter * slot_stride + expert * expert_stride
    own_scales = scales + adapter * scale_stride + expert * num_modules
    for index in range(tl.program_id(1), num_blocks, tl.num_programs(1)):
        block = blocks + index * 3
        module, first, end = tl.load(block), tl.load(block + 1), tl.load(block + 2)
        scale = tl.load(own_scales + module)
        n = first + tl.arange(0, COLUMNS)
        inside = n < end
        at_out = out + token.to(tl.int64)[:, None] * out_stride + n[None, :]
        is_changed = (token >= 0) & (tl.zeros((ROWS,), tl.float32) + scale != 0)
        mask = is_changed[:, None] & inside[None, :]
        base = tl.load(at_out, mask=mask, other=0.0).to(tl.float32)
        at = _Places(sums, squares, module, place, num_places, eps)
        delta = _delta(
            at, own, scale, n, inside, num_inputs, num_spans, num_modules, RANK, STEP, ROWS, COLUMNS
        )
        tl.store(at_out, (base + delta).to(out.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["num_tiles", "num_tokens"])
def _expand_gated_kernel(
    inner,
    gate_up,
    sums,
    b,
    scales,
    tokens,
    slots,
    by_token,
    slot_stride,
    scale_stride,
    num_tiles,
    num_tokens,
    width: tl.constexpr,
    num_inputs: tl.constexpr,
    num_spans: tl.constexpr,
    RANK: tl.constexpr,  # noqa: N803
    STEP: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program joins some blocks of a tile's gates and values, or of rows without an adapter."""
    begin_next(overlap)
    wait_for_last(overlap)
    tile = tl.program_id(0)
    slot = tl.full((), 0, tl.int64)
    of_gate, of_up = 0.0, 0.0
    if tile < num_tiles:
        slot = tl.load(slots + tile).to(tl.int64)
        if slot < 0:
            return
        token = tl.load(tokens + tile * ROWS + tl.arange(0, ROWS))
        here = token >= 0
        of_gate = tl.load(scales + slot * scale_stride)
        of_up = tl.load(scales + slot * scale_stride + 1)
    else:
        token = (tile - num_tiles) * ROWS + tl.arange(0, ROWS)
        here = tl.load(by_token + token, mask=token < num_tokens, other=0) < 0
        if tl.max(here.to(tl.int32), 0) == 0:
            return
    place, num_places = tile * ROWS + tl.arange(0, ROWS), num_tiles * ROWS
    dtype = inner.dtype.element_ty
    for begin in range(tl.program_id(1) * COLUMNS, width, tl.num_programs(1) * COLUMNS):
        n = begin + tl.arange(0, COLUMNS)
        inside = n < width
        mask = here[:, None] & inside[None, :]
        at_gate = gate_up + token.to(tl.int64)[:, None] * (2 * width) + n[None, :]
        gate = tl.load(at_gate, mask=mask, other=0.0)
        up = tl.load(at_gate + width, mask=mask, other=0.0)
        own = b + slot * slot_stride
        at = _Places(sums, None, 0, place, num_places, 0.0)
        delta = _delta(
            at, own, of_gate, n, inside, num_inputs, num_spans, 2, RANK, STEP, ROWS, COLUMNS
        )
        if of_gate != 0:
            gate = (gate.to(tl.float32) + delta).to(dtype)
        own += width * RANK
        at = _Places(sums, None, 1, place, num_places, 0.0)
        delta = _delta(
            at, own, of_up, n, inside, num_inputs, num_spans, 2, RANK, STEP, ROWS, COLUMNS
        )
        if of_up != 0:
            up = (up.to(tl.float32) + delta).to(dtype)
        at_inner = inner + token.to(tl.int64)[:, None] * width + n[None, :]
        tl.store(at_inner, gated_with(gate, up), mask=mask)


def _num_programs(num_tiles: int, num_blocks: int) -> int:
    """Programs that share the blocks of a tile: all tiles have about `MOST_PROGRAMS` at most.

    In a graph most tiles of many adapters are empty, and a program takes its time to see that.
    """
    return min(num_blocks, max(MOST_PROGRAMS // num_tiles, 1))


def expand_triton(
    out: torch.Tensor, shrunk: Shrunk, stacks: Stacks, groups: TokenGroups, **launch: Any
) -> None:
    """Add B times what was shrunk to out [T, out].

    Args:
        launch: options of the launch; none are those of a kernel that follows on the last.
    """
    num_spans, num_modules, num_places, rank = shrunk.sums.shape
    b, scales = stacks.b, stacks.scales
    assert out.stride(1) == 1
    assert scales.stride()[1:] == (num_modules, 1)
    num_tiles, num_blocks = len(groups.slots), len(stacks.blocks)
    _expand_kernel[(num_tiles, _num_programs(num_tiles, num_blocks))](
        out,
        shrunk.sums,
        shrunk.squares,
        b,
        scales,
        stacks.blocks,
        groups.tokens,
        groups.slots,
        out.stride(0),
        b.stride(0),
        b.stride(1),
        scales.stride(0),
        num_places,
        num_blocks,
        shrunk.eps,
        num_inputs=shrunk.num_inputs,
        num_experts=b.shape[1],
        num_spans=num_spans,
        num_modules=num_modules,
        RANK=rank,
        STEP=min(rank, MOST_RANKS),
        ROWS=TILE,
        COLUMNS=COLUMNS,
        num_warps=4,
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
    b, scales, num_tiles = stacks.b, stacks.scales, len(groups.slots)
    num_spans, num_modules, _, rank = shrunk.sums.shape
    assert groups.by_token is not None
    assert gate_up.is_contiguous()
    assert (num_modules, shrunk.squares) == (2, None)
    inner = torch.empty((num_tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    num_own = num_tiles + triton.cdiv(num_tokens, TILE)
    grid = (num_own, _num_programs(num_own, triton.cdiv(width, COLUMNS)))
    _expand_gated_kernel[grid](
        inner,
        gate_up,
        shrunk.sums,
        b,
        scales,
        groups.tokens,
        groups.slots,
        groups.by_token,
        b.stride(0),
        scales.stride(0),
        num_tiles,
        num_tokens,
        width=width,
        num_inputs=shrunk.num_inputs,
        num_spans=num_spans,
        RANK=rank,
        STEP=min(rank, MOST_RANKS),
        ROWS=TILE,
        COLUMNS=COLUMNS,
        num_warps=4,
        **(launch or overlap_of(gate_up)),
    )
    return inner
