"""Rows at fixed addresses are those of the step, and every other row has no slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.memory.snapshots import MAX_SNAPSHOTS
from engine.memory.state_rows import NULL_SLOT, StateRows
from engine.memory.states import RowStates, StepStates
from engine.runner.graphs.fixed_states import DECODES, PROMPTS, FixedStates

SIZE = 600
STATES = RowStates([], DECODES + PROMPTS + 1, 0, torch.device("cpu"))
Rows = tuple[list[int], int]
"""Tokens of each row, and how many rows decode."""
STEPS: list[Rows] = [
    ([1] * DECODES + [7] * PROMPTS, DECODES),
    ([30], 0),
    ([2, 2, 5], 2),
    ([1, 1], 2),
    ([40, 3], 0),
]


def states_of(rows: Rows) -> StepStates:
    """Of rows whose fields have numbers of their own."""
    counts, num_decodes = rows
    starts, count = np.cumsum([0, *counts], dtype=np.int32), len(counts)
    numbers = torch.arange(1, count + 1, dtype=torch.int32)
    snapshots = numbers[:, None].expand(count, MAX_SNAPSHOTS)
    table = StateRows(
        torch.from_numpy(starts),
        numbers.long(),
        numbers * 2,
        numbers * 3,
        numbers * 4,
        snapshots.long() * 5,
        snapshots * 6,
    )
    return STATES.parts(table, starts, num_decodes)


def test_steps_in_turn() -> None:
    """Nothing of a step is left to the next one's."""
    fixed = FixedStates([], 2, torch.device("cpu"))
    for rows in STEPS:
        states, (counts, num_decodes) = states_of(rows), rows
        assert fixed.fits(states)
        fixed.put(states, sum(counts), SIZE)
        decodes, prompts = fixed.of_size(SIZE, mixed=True).parts
        (alone,) = fixed.of_size(SIZE, mixed=False).parts
        assert alone is not prompts
        assert all(a is b for a, b in zip(alone.rows, prompts.rows, strict=True))
        assert decodes.extent.num_certain == 1
        assert prompts.extent.num_certain is None
        ends = np.cumsum(counts)
        for part, first, last in ((decodes, 0, num_decodes), (prompts, num_decodes, len(counts))):
            own, starts = last - first, part.rows.starts.tolist()
            assert part.rows.slots.tolist()[own:] == [NULL_SLOT] * (len(part.rows.slots) - own)
            for i in range(own):
                number = first + i + 1
                assert [int(each[i].max()) for each in part.rows[1:]] == [
                    number * factor for factor in range(1, 7)
                ]
                assert starts[i : i + 2] == [
                    ends[number - 1] - counts[number - 1],
                    ends[number - 1],
                ]
            if part is decodes:  # the rows after them have no tokens
                assert len(set(starts[own:])) == 1
            else:  # but the last, which has those that pad the step
                assert starts[own:] == [sum(counts)] * (PROMPTS + 1 - own) + [SIZE]


@pytest.mark.parametrize(
    "rows",
    [
        ([1] * (DECODES + 1), DECODES + 1),
        ([3] * (PROMPTS + 1), 0),
        ([3, 3, 5], 2),  # more drafts than steps were captured with
    ],
)
def test_steps_that_do_not_fit(rows: Rows) -> None:
    assert not FixedStates([], 2, torch.device("cpu")).fits(states_of(rows))


def test_rows_that_begin_from_what_others_leave_do_not_fit() -> None:
    """Layers compute those first, as a part of their own."""
    first, second = (states_of(rows).parts[0] for rows in (([3], 0), ([4], 0)))
    assert not FixedStates([], 2, torch.device("cpu")).fits(StepStates([], [first, second]))
