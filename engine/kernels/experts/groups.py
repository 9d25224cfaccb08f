# mypy: allow-untyped-defs, allow-incomplete-defs
"""The pairs of a token and one of its experts, ordered by expert, without asking the host.

Pair p is the token p // top_k with its expert of rank p % top_k.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

BLOCK, A_WARP = 4096, 512
"""Most pairs that a program looks at together, and those of them that a warp looks at."""
MOST_PARTS = 4
"""Programs that divide the pairs of an expert at most: to place a pair takes longer than to count
it."""


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
    """A program finds the pairs of one expert in one part of all pairs."""
    begin_next(overlap)
    wait_for_last(overlap)
    expert, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    part = tl.cdiv(tl.cdiv(num_pairs, BLOCK), tl.num_programs(1)) * BLOCK
    begin = tl.program_id(1) * part
    num_before = tl.zeros((BLOCK,), tl.int32)
    for at in range(0, num_pairs, BLOCK):
        pair = at + lanes
        other = tl.load(ids + pair, mask=pair < num_pairs, other=1 << 30)
        num_before += ((other < expert) | ((other == expert) & (pair < begin))).to(tl.int32)
    place = tl.sum(num_before, 0)
    if begin == 0:
        tl.store(starts + expert, place)
        if expert == tl.num_programs(0) - 1:
            tl.store(starts + expert + 1, num_pairs)
    for at in range(begin, tl.minimum(begin + part, num_pairs), BLOCK):
        inside = at + lanes < num_pairs
        mine = (tl.load(ids + at + lanes, mask=inside, other=-1) == expert).to(tl.int32)
        places = place + tl.cumsum(mine, 0) - mine
        tl.store(order + places, at + lanes, mask=mine != 0)
        place += tl.sum(mine, 0)


def group_pairs_triton(ids: torch.Tensor, num_experts: int) -> Groups:
    """Compute `group_pairs` in a kernel; ids contiguous."""
    assert ids.is_contiguous()
    num_pairs = ids.numel()
    order = torch.empty(num_pairs, dtype=torch.int32, device=ids.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=ids.device)
    block = min(max(triton.next_power_of_2(num_pairs), 64), BLOCK)
    warps = max(block // A_WARP, 4)
    num_parts = max(min(triton.cdiv(num_pairs, 2 * block), MOST_PARTS), 1)
    _group_kernel[(num_experts, num_parts)](
        ids, order, starts, num_pairs, BLOCK=block, num_warps=warps, **overlap_of(ids)
    )
    return Groups(order, starts)
