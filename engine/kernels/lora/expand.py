# mypy: allow-untyped-defs, allow-incomplete-defs
"""The second product of an adapter: its rank to outputs, added to those of the base."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from engine.kernels.lora.groups import TILE, TokenGroups
from engine.kernels.lora.shrink import Shrunk
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl

COLUMNS = 128
"""Outputs that a program computes at most."""
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


@jit(do_not_specialize=["num_places"])
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
    """A program adds to a block of a tile's outputs."""
    begin_next(overlap)
    wait_for_last(overlap)
    slot = tl.load(slots + tl.program_id(0)).to(tl.int64)
    if slot < 0:
        return
    block = blocks + tl.program_id(1) * 3
    module, first, end = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.load(tokens + place)
    n = first + tl.arange(0, COLUMNS)
    here, inside = token >= 0, n < end
    # What does not wait for one another is asked for at once: a program is a chain of loads.
    at_out = out + token.to(tl.int64)[:, None] * out_stride + n[None, :]
    mask = here[:, None] & inside[None, :]
    base = tl.load(at_out, mask=mask, other=0.0).to(tl.float32)
    expert, slot = slot % num_experts, slot // num_experts
    scale = tl.load(scales + slot * scale_stride + expert * num_modules + module)
    factor = tl.zeros((ROWS,), tl.float32) + 1.0
    if squares is not None:
        square = tl.zeros((ROWS,), tl.float32)
        for each in tl.static_range(num_spans):
            square += tl.load(squares + each * num_places + place)
        factor = tl.rsqrt(square / num_inputs + eps)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    dtype = b.dtype.element_ty
    for start in range(0, RANK, STEP):
        r = start + tl.arange(0, STEP)
        own = b + slot * slot_stride + expert * expert_stride
        own += n[None, :].to(tl.int64) * RANK + r[:, None]
        tile = tl.load(own, mask=inside[None, :], other=0.0)
        shrunk = tl.zeros((ROWS, STEP), tl.float32)
        for span in range(num_spans):
            at = ((span * num_modules + module) * num_places + place).to(tl.int64)
            shrunk += tl.load(sums + at[:, None] * RANK + r[None, :])
        shrunk *= factor[:, None]
        total = tl.dot(shrunk.to(dtype), tile, total, input_precision="ieee")
    tl.store(at_out, (base + total * scale).to(out.dtype.element_ty), mask=mask)


def expand_triton(
    out: torch.Tensor,
    shrunk: Shrunk,
    b: torch.Tensor,
    scales: torch.Tensor,
    blocks: torch.Tensor,
    groups: TokenGroups,
) -> None:
    """Add B times what was shrunk to out [T, out]; arguments as of `Stacks`."""
    num_spans, num_modules, num_places, rank = shrunk.sums.shape
    assert out.stride(1) == 1
    assert scales.stride()[1:] == (num_modules, 1)
    _expand_kernel[(len(groups.slots), len(blocks))](
        out,
        shrunk.sums,
        shrunk.squares,
        b,
        scales,
        blocks,
        groups.tokens,
        groups.slots,
        out.stride(0),
        b.stride(0),
        b.stride(1),
        scales.stride(0),
        num_places,
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
        **overlap_of(out),
    )
