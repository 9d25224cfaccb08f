# mypy: allow-untyped-defs, allow-incomplete-defs
"""What adapters add to embeddings: scale * B A[:, id], each token by its own adapter."""

from __future__ import annotations

import torch

from engine.contracts.adapters import NO_SLOT
from engine.kernels.lora.expand import expand_triton
from engine.kernels.lora.groups import TILE, TokenGroups
from engine.kernels.lora.shrink import Shrunk
from engine.kernels.lora.stacks import Stacks
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl


def add_embedding_delta(
    out: torch.Tensor, ids: torch.Tensor, stacks: Stacks, groups: TokenGroups
) -> None:
    """Add to embeddings what the tokens' adapters make of their ids.

    Args:
        out: [T, hidden], is written to. ids: int32 [T].
    """
    if not len(groups.slots):
        return
    compute = add_embedding_delta_triton if out.is_cuda else add_embedding_delta_torch
    compute(out, ids, stacks, groups)


def add_embedding_delta_triton(
    out: torch.Tensor, ids: torch.Tensor, stacks: Stacks, groups: TokenGroups
) -> None:
    """Compute `add_embedding_delta` by a kernel that takes columns of A, and `expand`."""
    num_tiles, rank = len(groups.slots), stacks.a.shape[-1]
    sums = torch.empty((1, num_tiles * TILE, 1, rank), dtype=torch.float32, device=out.device)
    own_scales = torch.empty((1, num_tiles), dtype=torch.float32, device=out.device)
    _take_kernel[(num_tiles,)](
        ids,
        stacks.a,
        groups.tokens,
        groups.slots,
        stacks.scales,
        sums,
        own_scales,
        stacks.a.stride(0),
        stacks.scales.stride(0),
        RANK=rank,
        ROWS=TILE,
        num_warps=4,
        **overlap_of(out),
    )
    shrunk = Shrunk(sums, None, own_scales, stacks.a.shape[2], 0.0)
    expand_triton(out, shrunk, stacks, groups)


def add_embedding_delta_torch(
    out: torch.Tensor, ids: torch.Tensor, stacks: Stacks, groups: TokenGroups
) -> None:
    """Compute `add_embedding_delta` in plain torch, tile by tile as `add_delta_torch`."""
    slots = groups.slots.tolist()
    for tile, slot in zip(groups.tokens.to(torch.int64), slots, strict=True):
        if slot == NO_SLOT:
            continue
        columns = stacks.a[slot, 0][ids[tile.clamp(min=0)].long()]  # [TILE, R]
        delta = (columns @ stacks.b[slot, 0].t()) * stacks.scales[slot, 0, 0]
        tokens = tile[tile >= 0]
        out[tokens] += delta[: len(tokens)].to(out.dtype)


@jit
def _take_kernel(
    ids,
    a,
    tokens,
    slots,
    scales,
    sums,
    own_scales,
    slot_stride,
    scale_stride,
    RANK: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program takes the columns of a tile's ids."""
    begin_next(overlap)
    wait_for_last(overlap)
    slot, scale = tl.load(slots + tl.program_id(0)).to(tl.int64), 0.0
    if slot >= 0:
        scale = tl.load(scales + slot * scale_stride)
    tl.store(own_scales + tl.program_id(0), scale)
    if slot < 0:
        return
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, r = tl.load(tokens + place), tl.arange(0, RANK)
    here = token >= 0
    own = tl.load(ids + token, mask=here, other=0).to(tl.int64)
    at = a + slot * slot_stride + own[:, None] * RANK + r[None, :]
    values = tl.load(at, mask=here[:, None], other=0.0)
    tl.store(sums + place.to(tl.int64)[:, None] * RANK + r[None, :], values.to(tl.float32))
