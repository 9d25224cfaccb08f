# mypy: allow-untyped-defs, allow-incomplete-defs
"""The pairs of a token and one of its experts, ordered by expert, without asking the host.

Pair p is the token p // top_k with its expert of rank p % top_k.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.kernels.experts.tiles import PLACE_BITS
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, padded_lanes, tl, triton

BLOCK, A_WARP = 4096, 512
"""Most pairs that a program of an expert looks at together, and those that a warp looks at."""
FEW_PAIRS = 8192
"""The most pairs that the programs of all experts look through: many are divided first, since
what each expert's program has to look through grows with them."""
PART, STEP, PARTS = 512, 128, 16
"""Of many pairs, those that a program places, those of them that it compares at once, and the other
programs' counts that it loads at once."""


class Groups(NamedTuple):
    """P pairs, ordered by expert, then by pair.

    Attributes:
        order: int32 [P], the pair at each place.
        starts: int32 [experts + 1]; expert e has the places starts[e] to starts[e + 1] - 1.
    """

    order: torch.Tensor
    starts: torch.Tensor


def group_pairs(ids: torch.Tensor, num_experts: int) -> Groups:
    """Order the pairs of ids int32 [T, k] by expert."""
    if ids.is_cuda:
        return group_pairs_triton(ids, num_experts)
    return group_pairs_torch(ids, num_experts)


def group_pairs_torch(ids: torch.Tensor, num_experts: int) -> Groups:
    flat = ids.flatten()
    counts = torch.bincount(flat, minlength=num_experts)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Groups(flat.sort(stable=True).indices.int(), starts.int())


@jit(do_not_specialize=["num_pairs"])
def _group_kernel(
    ids,
    order,
    starts,
    num_pairs,
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program finds the pairs of one expert."""
    begin_next(overlap)
    wait_for_last(overlap)
    expert, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    num_before = tl.zeros((BLOCK,), tl.int32)
    for at in range(0, num_pairs, BLOCK):
        other = tl.load(ids + at + lanes, mask=at + lanes < num_pairs, other=1 << 30)
        num_before += (other < expert).to(tl.int32)
    place = tl.sum(num_before, 0)
    tl.store(starts + expert, place)
    if expert == tl.num_programs(0) - 1:
        tl.store(starts + expert + 1, num_pairs)
    for at in range(0, num_pairs, BLOCK):
        inside = at + lanes < num_pairs
        mine = (tl.load(ids + at + lanes, mask=inside, other=-1) == expert).to(tl.int32)
        places = place + tl.cumsum(mine, 0) - mine
        tl.store(order + places, at + lanes, mask=mine != 0)
        place += tl.sum(mine, 0)


@jit(do_not_specialize=["num_pairs"])
def _count_kernel(
    ids,
    counts,
    num_pairs,
    num_experts: tl.constexpr,
    EXPERTS: tl.constexpr,  # noqa: N803
    PART: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program counts the pairs of each expert in one part of all pairs."""
    begin_next(overlap)
    wait_for_last(overlap)
    part, experts = tl.program_id(0), tl.arange(0, EXPERTS)
    at = part * PART + tl.arange(0, PART)
    inside = at < num_pairs
    own = tl.load(ids + at, mask=inside, other=0)
    tl.store(
        counts + part * num_experts + experts,
        tl.histogram(own, EXPERTS, mask=inside),
        mask=experts < num_experts,
    )


@jit(do_not_specialize=["num_pairs", "num_parts"])
def _place_kernel(
    ids,
    counts,
    order,
    starts,
    num_pairs,
    num_parts,
    num_experts: tl.constexpr,
    EXPERTS: tl.constexpr,  # noqa: N803
    PART: tl.constexpr,  # noqa: N803
    STEP: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program places the pairs of one part, after those of earlier experts and parts."""
    begin_next(overlap)
    wait_for_last(overlap)
    part, experts, lanes = tl.program_id(0), tl.arange(0, EXPERTS), tl.arange(0, STEP)
    here = experts < num_experts
    total = tl.zeros((EXPERTS,), tl.int32)
    place = tl.zeros((EXPERTS,), tl.int32)
    for first in range(0, num_parts, PARTS):
        other = first + tl.arange(0, PARTS)[:, None]
        counted = counts + other * num_experts + experts[None, :]
        each = tl.load(counted, mask=here[None, :] & (other < num_parts), other=0)
        total += tl.sum(each, 0)
        place += tl.sum(tl.where(other < part, each, 0), 0)
    start = tl.cumsum(total, 0) - total
    if part == 0:
        tl.store(starts + experts, start, mask=here)
        tl.store(starts + num_experts, num_pairs)
    place += start
    for at in range(part * PART, tl.minimum((part + 1) * PART, num_pairs), STEP):
        inside = at + lanes < num_pairs
        own = tl.load(ids + at + lanes, mask=inside, other=0)
        before = (own[:, None] == own[None, :]) & (lanes[None, :] < lanes[:, None])
        places = tl.gather(place, own, 0) + tl.sum(before.to(tl.int32), 1)
        tl.store(order + places, at + lanes, mask=inside)
        place += tl.histogram(own, EXPERTS, mask=inside)


def group_pairs_triton(ids: torch.Tensor, num_experts: int) -> Groups:
    """Compute `group_pairs` in kernels; ids contiguous."""
    assert ids.is_contiguous()
    num_pairs = ids.numel()
    assert num_pairs < 1 << PLACE_BITS
    order = torch.empty(num_pairs, dtype=torch.int32, device=ids.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=ids.device)
    if num_pairs <= FEW_PAIRS:
        block = min(max(triton.next_power_of_2(num_pairs), 64), BLOCK)
        _group_kernel[(num_experts,)](
            *(ids, order, starts, num_pairs),
            BLOCK=block,
            num_warps=max(block // A_WARP, 4),
            **overlap_of(ids),
        )
        return Groups(order, starts)
    num_parts = triton.cdiv(num_pairs, PART)
    counts = torch.empty((num_parts, num_experts), dtype=torch.int32, device=ids.device)
    sizes = {
        "num_experts": num_experts,
        "EXPERTS": max(padded_lanes(num_experts), 32),
        "PART": PART,
    }
    _count_kernel[(num_parts,)](ids, counts, num_pairs, **sizes, num_warps=4, **overlap_of(ids))
    _place_kernel[(num_parts,)](
        *(ids, counts, order, starts, num_pairs, num_parts),
        **sizes,
        STEP=STEP,
        PARTS=PARTS,
        num_warps=4,
        **overlap_of(ids),
    )
    return Groups(order, starts)
