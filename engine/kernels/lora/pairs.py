# mypy: allow-untyped-defs, allow-incomplete-defs
"""The pairs of a token and one of its experts, by adapter and expert, in tiles as `groups` has.

Which experts a token takes is known on the device alone, so they are sorted there. Where the tiles
of a group begin is not asked of the groups before it: with n pairs before group g it is tile
n // TILE + min(n, g), which leaves room for theirs. Tiles in between are empty.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.contracts.adapters import NO_SLOT
from engine.kernels.lora.groups import TILE, TokenGroups, group_tokens
from sampling.device.overlap import begin_next, overlap_of, wait_for_last
from sampling.device.triton_support import jit, tl, triton

BLOCK = 2048
"""Pairs that a program looks at together."""


class PairGroups(NamedTuple):
    """The pairs of a step whose tokens have an adapter, in N tiles; -1 fills up a tile.

    Attributes:
        tokens: int32 [N, TILE], those of the pairs.
        places: int32 [N, TILE], of the pairs in the order that `group_pairs` was given.
        pairs: int32 [N, TILE].
        slots: int32 [N], slot * experts + expert; `NO_SLOT` for a tile without pairs.
    """

    tokens: torch.Tensor
    places: torch.Tensor
    pairs: torch.Tensor
    slots: torch.Tensor

    def of(self, rows: torch.Tensor) -> TokenGroups:
        """The tiles with one of the three as their tokens."""
        return TokenGroups(rows, self.slots)


def group_adapted(
    ids: torch.Tensor,
    by_token: torch.Tensor,
    order: torch.Tensor | None,
    num_experts: int,
    num_slots: int,
) -> PairGroups:
    """Sort the pairs of ids int32 [T, k] whose tokens have an adapter.

    Args:
        by_token: int32 [T], slots. order: int32 [T * k], the pair at each place; None is in order.
    """
    if ids.is_cuda:
        return group_adapted_triton(ids, by_token, order, num_experts, num_slots)
    return group_adapted_torch(ids, by_token, order, num_experts)


def group_adapted_torch(
    ids: torch.Tensor, by_token: torch.Tensor, order: torch.Tensor | None, num_experts: int
) -> PairGroups:
    """Compute `group_adapted` on the host."""
    top_k = ids.shape[1]
    pairs = torch.arange(ids.numel()) if order is None else order.long()
    tokens = pairs // top_k
    keys = by_token[tokens] * num_experts + ids.flatten()[pairs]
    keys = torch.where(by_token[tokens] < 0, NO_SLOT, keys)
    places, slots = (torch.from_numpy(each) for each in group_tokens(keys.int().numpy()))
    own = places.long().clamp(min=0)
    rows = (torch.where(places < 0, -1, each[own].int()) for each in (tokens, pairs))
    of_tokens, of_pairs = rows
    return PairGroups(of_tokens, places, of_pairs, slots)


@jit
def _key(ids, by_token, order, place, inside, num_experts: tl.constexpr, top_k: tl.constexpr):
    """The pairs at places and their groups; -1 where there is no adapter."""
    pair = place if order is None else tl.load(order + place, mask=inside, other=0)
    slot = tl.load(by_token + pair // top_k, mask=inside, other=-1)
    expert = tl.load(ids + pair, mask=inside, other=0)
    return pair, tl.where(slot < 0, -1, slot * num_experts + expert)


@jit(do_not_specialize=["num_pairs", "num_tiles"])
def _group_kernel(
    ids,
    by_token,
    order,
    groups,
    num_pairs,
    num_tiles,
    num_experts: tl.constexpr,
    top_k: tl.constexpr,
    TILE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    overlap: tl.constexpr,
):
    """A program finds the pairs of one slot and expert."""
    begin_next(overlap)
    wait_for_last(overlap)
    group, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    lower, mine = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    for at in range(0, num_pairs, BLOCK):
        inside = at + lanes < num_pairs
        _, key = _key(ids, by_token, order, at + lanes, inside, num_experts, top_k)
        lower += ((key >= 0) & (key < group)).to(tl.int32)
        mine += (key == group).to(tl.int32)
    num_lower, count = tl.sum(lower, 0), tl.sum(mine, 0)
    first = num_lower // TILE + tl.minimum(num_lower, group)
    after = num_lower + count
    end = after // TILE + tl.minimum(after, group + 1)
    if group == tl.num_programs(0) - 1:
        end = num_tiles
    used = (count + TILE - 1) // TILE
    for at in range(first, end, BLOCK):
        tile = at + lanes
        value = tl.where(tile < first + used, group, -1)
        tl.store(groups.slots + tile, value, mask=tile < end)
    rest = count + tl.arange(0, TILE)
    is_left, rest = rest < used * TILE, first * TILE + rest
    tl.store(groups.tokens + rest, -1, mask=is_left)
    tl.store(groups.places + rest, -1, mask=is_left)
    tl.store(groups.pairs + rest, -1, mask=is_left)
    place = first * TILE
    for at in range(0, num_pairs, BLOCK):
        inside = at + lanes < num_pairs
        pair, key = _key(ids, by_token, order, at + lanes, inside, num_experts, top_k)
        is_mine = (key == group).to(tl.int32)
        to = place + tl.cumsum(is_mine, 0) - is_mine
        tl.store(groups.tokens + to, pair // top_k, mask=is_mine != 0)
        tl.store(groups.places + to, at + lanes, mask=is_mine != 0)
        tl.store(groups.pairs + to, pair, mask=is_mine != 0)
        place += tl.sum(is_mine, 0)


def group_adapted_triton(
    ids: torch.Tensor,
    by_token: torch.Tensor,
    order: torch.Tensor | None,
    num_experts: int,
    num_slots: int,
) -> PairGroups:
    """Compute `group_adapted` in a kernel; ids contiguous."""
    assert ids.is_contiguous()
    num_pairs, num_groups = ids.numel(), num_experts * num_slots
    num_tiles = num_pairs // TILE + min(num_pairs, num_groups)
    rows = torch.empty((3, num_tiles, TILE), dtype=torch.int32, device=ids.device)
    slots = torch.empty(num_tiles, dtype=torch.int32, device=ids.device)
    groups = PairGroups(rows[0], rows[1], rows[2], slots)
    _group_kernel[(num_groups,)](
        ids,
        by_token,
        order,
        groups,
        num_pairs,
        num_tiles,
        num_experts=num_experts,
        top_k=ids.shape[1],
        TILE=TILE,
        BLOCK=min(max(triton.next_power_of_2(num_pairs), 64), BLOCK),
        num_warps=4,
        **overlap_of(ids),
    )
    return groups
