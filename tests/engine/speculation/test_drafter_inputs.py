"""Inputs of a drafter's own forwards: positions, slots, lengths, and bounds on the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from engine.contracts.drafter import VerifiedStep
from engine.memory.blocks import NULL_BLOCK
from engine.speculation.drafter_inputs import single_steps

BLOCK = 4
TABLES = torch.tensor([[3, 5, 7], [2, 4, 6]], dtype=torch.int32)


def step_of(last: list[int], limits: list[int], bounds: list[int]) -> VerifiedStep:
    """A step of rows whose last kept tokens are at these positions.

    Args:
        bounds: of the lengths of the rows that drew, or of more rows.
    """
    seq_lens_np = np.array(bounds, dtype=np.int32)
    fields: dict[str, Any] = {
        "last": torch.arange(len(last)),
        "positions": torch.tensor(last),
        "limits": torch.tensor(limits),
        "block_tables": TABLES,
        "attention": SimpleNamespace(seq_lens_np=seq_lens_np, max_seq_len=int(seq_lens_np.max())),
    }
    return cast(VerifiedStep, SimpleNamespace(**fields))


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("bounds", [[6, 3], [6, 3, 2]])
def test_each_forward_is_one_token_further(start: int, bounds: list[int]) -> None:
    """By hand: each key's slot, and no length above the bound that attention sizes its work by."""
    last, limits = [5, 2], [8, 12]
    steps = single_steps(step_of(last, limits, bounds), start, 4, BLOCK)
    assert steps.positions.tolist() == [[p + start + i for p in last] for i in range(4)]
    for i, inputs in enumerate(steps.attention):
        slots, lens = [], []
        for row, (position, limit) in enumerate(
            zip(steps.positions[i].tolist(), limits, strict=True)
        ):
            block = int(TABLES[row, position // BLOCK]) if position < limit else NULL_BLOCK
            slots.append(block * BLOCK + position % BLOCK)
            lens.append(min(position + 1, limit))
        assert inputs.slots.tolist() == slots
        assert inputs.seq_lens.tolist() == lens
        assert (inputs.seq_lens_np >= np.array(lens)).all()
        assert len(inputs.seq_lens_np) == len(last)
        assert inputs.query_starts.tolist() == inputs.query_starts_np.tolist() == [0, 1, 2]
