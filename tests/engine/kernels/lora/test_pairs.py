from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.contracts.adapters import NO_SLOT
from engine.kernels.experts.groups import group_pairs_torch
from engine.kernels.lora.groups import TILE
from engine.kernels.lora.pairs import PairGroups, group_adapted_torch, group_adapted_triton
from tests.engine.kernels.where import DEVICES

NUM_SLOTS, NUM_EXPERTS, TOP_K = 3, 5, 2


def check(groups: PairGroups, ids: torch.Tensor, slots: torch.Tensor, places: torch.Tensor) -> None:
    """Each pair of a token with an adapter is once in a tile of its slot and expert.

    Args:
        places: int64 [P], of the pairs.
    """
    seen = []
    for tile, group in enumerate(groups.slots.tolist()):
        if group == NO_SLOT:
            continue
        own = groups.pairs[tile] >= 0
        pairs = groups.pairs[tile][own].long()
        assert len(pairs)
        assert (pairs >= 0).all()
        assert torch.equal(groups.tokens[tile][own].long(), pairs // TOP_K)
        assert torch.equal(groups.places[tile][own].long(), places[pairs])
        for rows in (groups.tokens, groups.places):
            assert (rows[tile][~own] == -1).all()
        assert (slots[pairs // TOP_K] * NUM_EXPERTS + ids.flatten()[pairs] == group).all()
        seen += pairs.tolist()
    has_adapter = (slots >= 0).repeat_interleave(TOP_K)
    assert sorted(seen) == has_adapter.nonzero().flatten().tolist()


def of_twin(
    ids: torch.Tensor, slots: torch.Tensor, order: torch.Tensor | None, *_: int
) -> PairGroups:
    return group_adapted_torch(ids, slots, order, NUM_EXPERTS)


def of_kernel(
    ids: torch.Tensor, slots: torch.Tensor, order: torch.Tensor | None, device: str
) -> PairGroups:
    own = None if order is None else order.to(device)
    args = ids.to(device), slots.to(device), own, NUM_EXPERTS, NUM_SLOTS
    return PairGroups(*(each.cpu() for each in group_adapted_triton(*args)))


@pytest.mark.parametrize("num_tokens", [1, 7, 90])
@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize(
    ("group", "device"),
    [(of_twin, "cpu"), *(pytest.param(of_kernel, *d.values, marks=d.marks) for d in DEVICES)],
)
def test_pairs_are_in_tiles_of_their_adapter_and_expert(
    group: Callable[..., PairGroups], device: str, num_tokens: int, is_ordered: bool
) -> None:
    generator = np.random.default_rng(num_tokens)
    some = generator.permuted(np.tile(np.arange(NUM_EXPERTS), (num_tokens, 1)), axis=1)
    ids = torch.from_numpy(some[:, :TOP_K].astype(np.int32).copy())
    slots = torch.from_numpy(generator.integers(-1, NUM_SLOTS, num_tokens).astype(np.int32))
    order = group_pairs_torch(ids, NUM_EXPERTS).order if is_ordered else None
    places = torch.arange(ids.numel())
    if order is not None:
        places[order.long()] = torch.arange(ids.numel())
    check(group(ids, slots, order, device), ids, slots, places)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("slot", [NO_SLOT, 0, NUM_SLOTS - 1])
def test_all_tokens_alike(slot: int, device: str) -> None:
    """The worst for tiles of one group, and a step without adapters."""
    ids = torch.tensor([[NUM_EXPERTS - 1, 0]], dtype=torch.int32).expand(3 * TILE, 2).contiguous()
    slots = torch.full((3 * TILE,), slot, dtype=torch.int32)
    check(of_kernel(ids, slots, None, device), ids, slots, torch.arange(ids.numel()))
