# mypy: allow-untyped-defs, allow-incomplete-defs
"""The first product of an adapter: inputs to its rank."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch

from engine.kernels.lora.groups import TILE, TokenGroups
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

SPAN = 512
"""Inputs that a program multiplies: a whole product of few tokens would be a chain too long. It is
part of the order of sums, so it is the same for every number of tokens."""


class InputNorm(NamedTuple):
    """An RMSNorm: weight [in] and the eps of its root."""

    weight: torch.Tensor
    eps: float


class Shrunk(NamedTuple):
    """Inputs times A, the sums of K spans of them apart; T places are those of all tiles.

    Attributes:
        sums: float32 [K, P, T, R].
        squares: float32 [K, T], sums of the inputs' squares, where a norm is yet to divide by
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
    sums,
    squares,
    x_stride,
    slot_stride,
    expert_stride,
    num_places,
    num_inputs: tl.constexpr,
    num_experts: tl.constexpr,
    num_modules: tl.constexpr,
    RANK: tl.constexpr,  # noqa: N803
    SPAN: tl.constexpr,  # noqa: N803
    STEP: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program multiplies one span of a tile's inputs by one module's A."""
    begin_next(overlap)
    wait_for_last(overlap)
    slot = tl.load(slots + tl.program_id(0)).to(tl.int64)
    if slot < 0:
        return
    module, span = tl.program_id(1), tl.program_id(2)
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.load(tokens + place)
    here, r = token >= 0, tl.arange(0, RANK)
    rows = x + token.to(tl.int64)[:, None] * x_stride
    own = a + slot // num_experts * slot_stride + slot % num_experts * expert_stride
    own += (module * RANK + r)[None, :] * num_inputs
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
    if norm_weight is not None:  # noqa: SIM102 (it is decided when the kernel is compiled)
        if module == 0:
            tl.store(squares + span * num_places + place, square)


def shrink_triton(
    x: torch.Tensor, a: torch.Tensor, groups: TokenGroups, norm: InputNorm | None
) -> Shrunk:
    """Multiply inputs x [T, in] by each token's A of a [S, E, P, R, in], see `Stacks`."""
    _, num_experts, num_modules, rank, num_inputs = a.shape
    assert x.stride(1) == 1
    assert x.dtype == a.dtype
    num_tiles = len(groups.slots)
    num_places, num_spans = num_tiles * TILE, triton.cdiv(num_inputs, SPAN)
    wide = partial(torch.empty, dtype=torch.float32, device=x.device)
    sums = wide((num_spans, num_modules, num_places, rank))
    squares = None if norm is None else wide((num_spans, num_places))
    _shrink_kernel[(num_tiles, num_modules, num_spans)](
        x,
        None if norm is None else norm.weight,
        a,
        groups.tokens,
        groups.slots,
        sums,
        squares,
        x.stride(0),
        a.stride(0),
        a.stride(1),
        num_places,
        num_inputs=num_inputs,
        num_experts=num_experts,
        num_modules=num_modules,
        RANK=rank,
        SPAN=SPAN,
        STEP=_step_of(rank, x.dtype),
        ROWS=TILE,
        num_warps=4,
        **overlap_of(x),
    )
    return Shrunk(sums, squares, num_inputs, 0.0 if norm is None else norm.eps)


def _step_of(rank: int, dtype: torch.dtype) -> int:
    """Inputs of a turn; what is loaded has to fit into shared memory."""
    if dtype == torch.float32:
        return 32 if rank <= 64 else 16
    return 128 if rank <= 64 else 64
