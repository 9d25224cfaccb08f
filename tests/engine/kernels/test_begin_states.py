"""What a step's rows begin from, and what the table says after it, against a plain loop."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.begin_states import begin_states, begin_states_torch
from engine.memory.snapshots import MAX_SNAPSHOTS
from engine.memory.states import SlotTable
from tests.engine.kernels.where import DEVICES

MAX_ROWS = 6
SCRATCH = MAX_ROWS


def table_on(device: str) -> SlotTable:
    generator = torch.Generator().manual_seed(1)

    def drawn(high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        numbers = torch.randint(0, high, (MAX_ROWS + 1, *shape), generator=generator)
        return numbers.to(dtype).to(device)

    slots = torch.arange(1, MAX_ROWS + 2, dtype=torch.int32)
    slots[SCRATCH] = 0
    return SlotTable(
        slots=slots.to(device),
        sources=drawn(20),
        entered=drawn(9, dtype=torch.int64),
        snapshot_ends=drawn(99, MAX_SNAPSHOTS, dtype=torch.int64),
        snapshot_slots=drawn(20, MAX_SNAPSHOTS),
    )


@pytest.mark.parametrize("compute", [begin_states, begin_states_torch])
@pytest.mark.parametrize("num_decodes", [0, 2, 5])
@pytest.mark.parametrize("device", DEVICES)
def test_rows_begin_where_the_last_step_left_them(
    compute: object, num_decodes: int, device: str
) -> None:
    assert callable(compute)
    table, before = table_on(device), table_on("cpu")
    rows = [4, 1, 0, SCRATCH, SCRATCH]
    counts, begins = [4, 4, 3, 1, 1], [11, 9, 0, 0, 0]
    starts = [sum(counts[:i]) for i in range(len(rows) + 1)]
    positions = torch.tensor(
        [begin + i for begin, count in zip(begins, counts, strict=True) for i in range(count)]
    )
    before.entered[0] = table.entered[0] = 0
    gathered = compute(
        table,
        torch.tensor(rows, device=device),
        positions.to(device),
        torch.tensor(starts, dtype=torch.int32, device=device),
        num_decodes,
    )
    assert gathered.begins.tolist() == begins
    assert gathered.slots.tolist() == [5, 2, 1, 0, 0]
    for i, row in enumerate(rows):
        assert gathered.sources[i] == before.sources[row]
        assert gathered.snapshot_ends[i].tolist() == before.snapshot_ends[row].tolist()
        assert gathered.snapshot_slots[i].tolist() == before.snapshot_slots[row].tolist()
        replays = 0 if row == SCRATCH else begins[i] - int(before.entered[row])
        assert gathered.replays[i] == replays
        num_certain = 1 if i < num_decodes else counts[i]
        is_scratch = row == SCRATCH
        left = int(before.entered[row]) if is_scratch else begins[i] + num_certain
        assert table.entered[row] == left
        assert table.sources[row] == (before.sources[row] if is_scratch else row + 1)
    others = [row for row in range(MAX_ROWS) if row not in rows]
    assert table.entered[others].tolist() == before.entered[others].tolist()
