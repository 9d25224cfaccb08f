from __future__ import annotations

import numpy as np
import pytest

from engine.contracts.adapters import NO_SLOT
from engine.kernels.lora.groups import TILE, ActiveAdapters, group_tokens, num_tiles
from tests.engine.kernels.lora.cases import groups_of


@pytest.mark.parametrize("seed", range(5))
def test_each_token_is_in_one_tile_of_its_adapter(seed: int) -> None:
    random = np.random.default_rng(seed)
    slots = random.integers(-1, 4, size=random.integers(1, 200)).astype(np.int32)
    tokens, tile_slots = group_tokens(slots)
    assert np.array_equal(np.sort(tokens[tokens >= 0]), np.flatnonzero(slots != NO_SLOT))
    for tile, slot in zip(tokens, tile_slots, strict=True):
        own = tile[tile >= 0]
        assert len(own)
        assert (slots[own] == slot).all()
        assert (np.diff(own) > 0).all(), "in the order of the step"
    assert len(tile_slots) <= num_tiles(len(slots), 4)


def test_no_step_fills_more_tiles_than_are_counted() -> None:
    for num_tokens in range(1, 70):
        for num_slots in range(1, 6):
            # The worst: one token of each adapter but one, which has the others.
            slots = np.zeros(num_tokens, dtype=np.int32)
            used = min(num_tokens, num_slots)
            slots[:used] = np.arange(used)
            assert len(group_tokens(slots)[1]) <= num_tiles(num_tokens, num_slots)
    one_over = np.repeat(np.arange(3, dtype=np.int32), TILE + 1)
    assert len(group_tokens(one_over)[1]) == num_tiles(len(one_over), 3) == 6


def test_tiles_beyond_those_filled_are_empty() -> None:
    tokens, slots = group_tokens(np.array([2, NO_SLOT, 2], dtype=np.int32), count=4)
    assert tokens.shape == (4, TILE)
    assert slots.tolist() == [2, NO_SLOT, NO_SLOT, NO_SLOT]
    assert tokens[0, :3].tolist() == [0, 2, -1]
    assert (tokens[1:] == -1).all()


def test_a_forward_within_another_leaves_its_adapters() -> None:
    active, groups = ActiveAdapters(), groups_of(np.zeros(3, dtype=np.int32), "cpu")
    seen = []
    with active.using(groups):
        with active.using(None):
            seen.append(active.groups)
        seen.append(active.groups)
    assert [*seen, active.groups] == [None, groups, None]
