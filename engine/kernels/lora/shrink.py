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

SPAN, NUM_SPANS = 512, 6
"""Inputs that a program multiplies at least, and the most sums that are left apart."""


def span_of(num_inputs: int) -> int:
    """Inputs that a program multiplies.

    A whole product of few tokens would be a chain too long, and many sums apart take longer to
    read than what they are added to. It is part of the order of sums, so it depends on the number
    of inputs alone.
    """
    share = -(-num_inputs // NUM_SPANS)
    return max(SPAN, 1 << (share - 1).bit_length())


class InputNorm(NamedTuple):
    """An RMSNorm: weight [in] and the eps of its root."""

    weight: torch.Tensor
    eps: float


class Shrunk(NamedTuple):
    """Inputs times A, the sums of K spans of them apart; T places are those of all tiles.

    Attributes:
        sums: float32 [K, P, T, R].
        squares: float32 [K, P, T], sums of the inputs' squares, where a norm is yet to divide by
            their root; None where none is.
        num_inputs, eps: of that norm.
    """

    sums: torch.Tensor
    squares: torch.Tensor | None
    num_inputs: int
    eps: float


@jit(do_not_specialize=["num_places"])
def _shrink_kernel(
    x,
    norm_weight,
    a,
    tokens,
    slots,
    scales,
    sums,
    squares,
    x_stride,
    slot_stride,
    expert_stride,
    scale_stride,
    num_places,
    num_inputs: tl.constexpr,
    num_experts: tl.constexpr,
    num_modules: tl.constexpr,
    RANK: tl.constexpr,  # noqa: N803
    SPAN: tl.constexpr,  # noqa: N803
    STEP: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    LINE: tl.constexpr,  # noqa: N803
    is_known: tl.constexpr,
    overlap: tl.constexpr,
):
    """A program multiplies one span of a tile's inputs by one module's A."""
    begin_next(overlap)
    if not is_known:
        wait_for_last(overlap)
    slot = tl.load(slots + tl.program_id(0)).to(tl.int64)
    module, span = tl.program_id(1), tl.program_id(2)
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.load(tokens + place)
    expert, adapter = slot % num_experts, slot // num_experts
    scale = 0.0
    if slot >= 0:
        scale = tl.load(scales + adapter * scale_stride + expert * num_modules + module)
    here, r = token >= 0, tl.arange(0, RANK)
    own = a + adapter * slot_stride + expert * expert_stride
    own += (module * RANK + r)[None, :] * num_inputs
    if is_known:
        if overlap and scale != 0:  # A comes into the cache while the last kernel makes the inputs
            line = span * SPAN + tl.arange(0, SPAN // LINE) * LINE
            prefetch(own + tl.minimum(line, num_inputs - 1)[:, None])
        wait_for_last(overlap)
    if scale == 0:
        return  # there is no adapter, or it leaves the module alone: `expand` takes nothing
    rows = x + token.to(tl.int64)[:, None] * x_stride
    total = tl.zeros((ROWS, RANK), tl.float32)
    square = tl.zeros((ROWS,), tl.float32)
    for start in range(0, SPAN, STEP):
        k = span * SPAN + start + tl.arange(0, STEP)
        inside = k < num_inputs
        value = tl.load(rows + k[None, :], mask=here[:, None] & inside[None, :], other=0.0)
        if norm_weight is not None:
            wide = value.to(tl.float32)
            square += tl.sum(wide * wide, 1)
            weight = tl.load(norm_weight + k, mask=inside, other=0.0).to(tl.float32)
            value = (wide * weight[None, :]).to(value.dtype)
        tile = tl.load(own + k[:, None], mask=inside[:, None], other=0.0)
        total = tl.dot(value, tile, total, input_precision="ieee")
    at = ((span * num_modules + module) * num_places + place).to(tl.int64)
    tl.store(sums + at[:, None] * RANK + r[None, :], total)
    if norm_weight is not None:
        tl.store(squares + at, square)


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
    num_spans = triton.cdiv(num_inputs, span_of(num_inputs))
    wide = partial(torch.empty, dtype=torch.float32, device=x.device)
    places = (num_spans, num_modules, len(groups.slots) * TILE)
    squares, eps = (None, 0.0) if norm is None else (wide(places), norm.eps)
    return Shrunk(wide((*places, rank)), squares, num_inputs, eps)


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
    a, scales = stacks.a, stacks.scales
    _, num_experts, num_modules, rank, num_inputs = a.shape
    assert x.stride(1) == 1
    assert x.dtype == a.dtype
    assert scales.stride()[1:] == (num_modules, 1)
    num_tiles, num_spans = len(groups.slots), len(shrunk.sums)
    _shrink_kernel[(num_tiles, num_modules, num_spans)](
        x,
        None if norm is None else norm.weight,
        a,
        groups.tokens,
        groups.slots,
        scales,
        shrunk.sums,
        shrunk.squares,
        x.stride(0),
        a.stride(0),
        a.stride(1),
        scales.stride(0),
        num_tiles * TILE,
        num_inputs=num_inputs,
        num_experts=num_experts,
        num_modules=num_modules,
        RANK=rank,
        SPAN=span_of(num_inputs),
        STEP=_step_of(rank, x.dtype),
        ROWS=TILE,
        LINE=128 // x.element_size(),
        is_known=groups.by_token is not None,
        num_warps=4,
        **launch,
    )


def _step_of(rank: int, dtype: torch.dtype) -> int:
    """Inputs of a turn; what is loaded has to fit into shared memory."""
    if dtype == torch.float32:
        return 32 if rank <= 64 else 16
    return 128 if rank <= 64 else 64
