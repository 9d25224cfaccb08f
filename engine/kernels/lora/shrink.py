# mypy: allow-untyped-defs, allow-incomplete-defs
"""The first product of an adapter: inputs to its rank."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch

from engine.kernels.lora.groups import TILE, TokenGroups
from engine.kernels.lora.stacks import Stacks
from sampling.device.overlap import begin_next, overlap_of, prefetch, wait_for_last
from sampling.device.triton_support import jit, tl, triton

SPAN, MOST_SPAN = 512, 1536
"""Inputs that a program multiplies at least, and where there are few sums, at most."""
TURN = 256
"""Inputs of a turn at most."""
FEW_SUMS, MOST_SUMS = 4, 8
"""Sums that are left apart."""
PARTS = 4
"""Warps of a program, which share its inputs."""
MOST_LOADED = 64 << 10
"""Bytes that are on their way to a program at once; two turns always are."""
MOST_FETCHED = 24 << 20
"""Bytes of B of all slots that come into the cache ahead: half of it on a Hopper GPU."""


def span_of(num_inputs: int) -> int:
    """Inputs that a program multiplies.

    A whole product of few tokens would be a chain too long, and many sums apart take longer to
    read than what they are added to. It is part of the order of sums, so it depends on the number
    of inputs alone.
    """
    span = max(SPAN, min(num_inputs // FEW_SUMS, MOST_SPAN), num_inputs // MOST_SUMS)
    return -(-span // TURN) * TURN


class InputNorm(NamedTuple):
    """An RMSNorm: weight [in] and the eps of its root."""

    weight: torch.Tensor
    eps: float


class Shrunk(NamedTuple):
    """Inputs times A, the sums of K spans of them apart; T places are those of all N tiles.

    Attributes:
        sums: float32 [P, T, K, R], written where there is a token and its adapter has the module.
        squares: float32 [P, T, K], sums of the inputs' squares, where a norm is yet to divide by
            their root; None where none is.
        scales: float32 [P, N], of each tile; 0 where nothing is added.
        num_inputs, eps: of that norm.
    """

    sums: torch.Tensor
    squares: torch.Tensor | None
    scales: torch.Tensor
    num_inputs: int
    eps: float


@jit(do_not_specialize=["num_tiles"])
def _shrink_kernel(
    x,
    norm_weight,
    a,
    b,
    tokens,
    slots,
    scales,
    sums,
    squares,
    own_scales,
    x_stride,
    slot_stride,
    slot_stride_b,
    expert_stride,
    scale_stride,
    num_tiles,
    bounds: tl.constexpr,
    num_inputs: tl.constexpr,
    num_experts: tl.constexpr,
    RANK: tl.constexpr,  # noqa: N803
    SPAN: tl.constexpr,  # noqa: N803
    STEP: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    LINE: tl.constexpr,  # noqa: N803
    is_known: tl.constexpr,
    fetches: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program multiplies one span of a tile's inputs by one module's A.

    Each warp has its own part of the inputs: one that multiplies them all waits at each turn for
    the product before.
    """
    begin_next(overlap)
    if not is_known:
        wait_for_last(overlap)
    num_modules: tl.constexpr = len(bounds) - 1
    tile, module, span = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + tile).to(tl.int64)
    place = tile * ROWS + tl.arange(0, ROWS)
    token = tl.load(tokens + place)
    expert, adapter = slot % num_experts, slot // num_experts
    scale = 0.0
    if slot >= 0:
        scale = tl.load(scales + adapter * scale_stride + expert * num_modules + module)
    here, r = token >= 0, tl.arange(0, RANK)
    own = a + adapter * slot_stride + expert * expert_stride
    own += (module * RANK + r) * num_inputs
    if is_known:
        if overlap and scale != 0:  # A comes into the cache while the last kernel makes the inputs
            for start in range(0, SPAN, STEP):
                line = span * SPAN + start + tl.arange(0, STEP // LINE) * LINE
                prefetch(own[None, :] + tl.minimum(line, num_inputs - 1)[:, None])
        wait_for_last(overlap)
    if span == 0:
        tl.store(own_scales + module * num_tiles + tile, scale)
    if scale == 0:
        return  # there is no adapter, or it leaves the module alone: `expand` takes nothing
    rows = x + token.to(tl.int64) * x_stride
    total = tl.zeros((PARTS, ROWS, RANK), tl.float32)
    square = tl.zeros((PARTS, ROWS), tl.float32)
    part = tl.arange(0, PARTS)[:, None] * (STEP // PARTS) + tl.arange(0, STEP // PARTS)[None, :]
    for start in range(0, SPAN, STEP):
        k = span * SPAN + start + part
        inside = k < num_inputs
        is_read = here[None, :, None] & inside[:, None, :]
        value = tl.load(rows[None, :, None] + k[:, None, :], mask=is_read, other=0.0)
        own_a = tl.load(own[None, None, :] + k[:, :, None], mask=inside[:, :, None], other=0.0)
        if norm_weight is not None:
            wide = value.to(tl.float32)
            square += tl.sum(wide * wide, 2)
            weight = tl.load(norm_weight + k, mask=inside, other=0.0).to(tl.float32)
            value = (wide * weight[:, None, :]).to(value.dtype)
        total = tl.dot(value, own_a, total, input_precision="ieee")
    if fetches and overlap:
        _fetch_b(b + adapter * slot_stride_b, module, span, bounds, RANK, LINE)
    at = (module * num_tiles * ROWS + place).to(tl.int64) * tl.num_programs(2) + span
    tl.store(sums + at[:, None] * RANK + r[None, :], tl.sum(total, 0), mask=here[:, None])
    if norm_weight is not None:
        tl.store(squares + at, tl.sum(square, 0), mask=here)


@jit
def _fetch_b(b, module, span, bounds: tl.constexpr, RANK: tl.constexpr, LINE: tl.constexpr):  # noqa: N803
    """Bring a program's share of a module's B into the cache, where `expand` will read it."""
    first, end = bounds[0] + module * 0, bounds[1] + module * 0
    for each in tl.static_range(1, len(bounds) - 1):
        first = tl.where(module == each, bounds[each], first)
        end = tl.where(module == each, bounds[each + 1], end)
    num_lines = tl.cdiv((end - first) * RANK, LINE)
    share = tl.cdiv(num_lines, tl.num_programs(2))
    for start in range(span * share, min((span + 1) * share, num_lines), 128):
        line = tl.minimum(start + tl.arange(0, 128), num_lines - 1)
        prefetch(b + first * RANK + line * LINE)


def shrink_triton(
    x: torch.Tensor, stacks: Stacks, groups: TokenGroups, norm: InputNorm | None
) -> Shrunk:
    """Multiply inputs x [T, in] by each token's A."""
    shrunk = empty_shrunk(x, stacks, groups, norm)
    launch_shrink(shrunk, x, stacks, groups, norm, **overlap_of(x))
    return shrunk


def empty_shrunk(
    x: torch.Tensor, stacks: Stacks, groups: TokenGroups, norm: InputNorm | None
) -> Shrunk:
    """Allocate what `launch_shrink` writes."""
    _, _, num_modules, rank, num_inputs = stacks.a.shape
    num_tiles, num_spans = len(groups.slots), triton.cdiv(num_inputs, span_of(num_inputs))
    wide = partial(torch.empty, dtype=torch.float32, device=x.device)
    places = (num_modules, num_tiles * TILE, num_spans)
    squares, eps = (None, 0.0) if norm is None else (wide(places), norm.eps)
    scales = wide((num_modules, num_tiles))
    return Shrunk(wide((*places, rank)), squares, scales, num_inputs, eps)


def launch_shrink(
    shrunk: Shrunk,
    x: torch.Tensor,
    stacks: Stacks,
    groups: TokenGroups,
    norm: InputNorm | None,
    **launch: Any,
) -> None:
    """Launch `shrink_triton` into tensors that are there.

    Args:
        launch: its options, as of `overlap_of`.
    """
    a, b, scales = stacks.a, stacks.b, stacks.scales
    _, num_experts, num_modules, rank, num_inputs = a.shape
    assert x.stride(1) == 1
    assert x.dtype == a.dtype
    assert scales.stride()[1:] == (num_modules, 1)
    num_tiles, num_spans = len(groups.slots), shrunk.sums.shape[2]
    _shrink_kernel[(num_tiles, num_modules, num_spans)](
        x,
        None if norm is None else norm.weight,
        a,
        b,
        groups.tokens,
        groups.slots,
        scales,
        shrunk.sums,
        shrunk.squares,
        shrunk.scales,
        x.stride(0),
        a.stride(0),
        b.stride(0),
        a.stride(1),
        scales.stride(0),
        num_tiles,
        bounds=stacks.bounds,
        num_inputs=num_inputs,
        num_experts=num_experts,
        RANK=rank,
        PARTS=PARTS,
        ROWS=TILE,
        LINE=128 // x.element_size(),
        is_known=groups.by_token is not None,
        fetches=num_experts == 1 and b.shape[0] * b.shape[2] * rank * b.itemsize <= MOST_FETCHED,
        num_warps=PARTS,
        **_turns(num_inputs, rank, x.dtype),
        **launch,
    )


def _turns(num_inputs: int, rank: int, dtype: torch.dtype) -> dict[str, int]:
    """Launch options: inputs of a program and of a turn, and turns that are loaded at once."""
    span, step = span_of(num_inputs), TURN if rank <= 16 else TURN // 2
    if dtype == torch.float32 or rank > 64:
        step = TURN // 4
    most = max(MOST_LOADED // ((rank + TILE) * step * dtype.itemsize), 2)
    return {"SPAN": span, "STEP": step, "num_stages": min(span // step, most) + 1}
