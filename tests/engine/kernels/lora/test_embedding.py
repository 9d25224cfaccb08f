"""Sums of `rank` products in float32: errors stay far below 1e-5."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.kernels.lora.embedding import (
    add_embedding_delta,
    add_embedding_delta_torch,
    add_embedding_delta_triton,
)
from engine.kernels.lora.groups import TILE
from engine.kernels.lora.stacks import Stacks
from tests.engine.kernels.lora.cases import groups_of
from tests.engine.kernels.where import DEVICES

VOCAB, HIDDEN, RANK, NUM_SLOTS = 50, 150, 16, 3
SLOTS = np.array([0, -1, 2, 0, 1, -1, *[1] * (TILE + 3)], dtype=np.int32)


@pytest.mark.parametrize(
    ("compute", "device"),
    [
        (add_embedding_delta_torch, "cpu"),
        *(pytest.param(add_embedding_delta_triton, *d.values, marks=d.marks) for d in DEVICES),
    ],
)
def test_deltas_equal_float64(compute: Callable[..., None], device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn((NUM_SLOTS, 1, VOCAB, RANK), generator=generator)
    b = torch.randn((NUM_SLOTS, 1, HIDDEN, RANK), generator=generator) / 4
    scales = torch.tensor([0.5, 1.0, 2.0])[:, None, None]
    ids = torch.randint(VOCAB, (len(SLOTS),), generator=generator, dtype=torch.int32)
    out = torch.randn((len(SLOTS), HIDDEN), generator=generator)
    wanted = out.double()
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            column = a[slot, 0, ids[token].long()].double()
            wanted[token] += scales[slot, 0, 0].double() * (b[slot, 0].double() @ column)
    a, b, scales = (each.to(device) for each in (a, b, scales))
    stacks = Stacks(a, b, scales, (0, HIDDEN))
    got = out.to(device)
    compute(got, ids.to(device), stacks, groups_of(SLOTS, device, count=5))
    torch.testing.assert_close(got.cpu().double(), wanted, rtol=0, atol=1e-5)
    bare = torch.from_numpy(SLOTS < 0)
    assert torch.equal(got.cpu()[bare], out[bare])


def test_a_step_without_adapters_is_left_alone() -> None:
    out = torch.ones((2, HIDDEN))
    zeros = torch.zeros(1)
    stacks = Stacks(zeros, zeros, zeros, (0, HIDDEN))
    groups = groups_of(np.full(2, -1, np.int32), "cpu")
    add_embedding_delta(out, torch.zeros(2, dtype=torch.int32), stacks, groups)
    assert torch.equal(out, torch.ones((2, HIDDEN)))
