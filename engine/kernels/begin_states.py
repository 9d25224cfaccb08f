# mypy: allow-untyped-defs, allow-incomplete-defs
"""Gathers where the states of a step's rows are, and notes where the step will leave them.

What a step enters follows from positions alone, so this is known before its layers run: one kernel
at the beginning of every step, in its graph.
"""

from __future__ import annotations

import torch

from engine.memory.snapshots import MAX_SNAPSHOTS
from engine.memory.state_rows import NULL_SLOT, StateRows
from engine.memory.states import SlotTable
from sampling.device.triton_support import constexpr, jit, kernels_run_on, tl

_NULL, _SNAPSHOTS = constexpr(NULL_SLOT), constexpr(MAX_SNAPSHOTS)


@jit(do_not_specialize=["num_decodes"])
def _begin_kernel(rows_ptr, positions_ptr, table, gathered, num_decodes):
    i = tl.program_id(0)
    row = tl.load(rows_ptr + i)
    start = tl.load(gathered.starts + i)
    count = tl.load(gathered.starts + i + 1) - start
    begin = tl.load(positions_ptr + start)
    slot = tl.load(table.slots + row)
    replays = begin - tl.load(table.entered + row)
    tl.store(gathered.begins + i, begin)
    tl.store(gathered.sources + i, tl.load(table.sources + row))
    tl.store(gathered.slots + i, slot)
    tl.store(gathered.replays + i, tl.where(slot == _NULL, 0, replays).to(tl.int32))
    for j in tl.static_range(_SNAPSHOTS):
        at, to = row * _SNAPSHOTS + j, i * _SNAPSHOTS + j
        tl.store(gathered.snapshot_ends + to, tl.load(table.snapshot_ends + at))
        tl.store(gathered.snapshot_slots + to, tl.load(table.snapshot_slots + at))
    if slot != _NULL:
        tl.store(table.sources + row, slot)
        tl.store(table.entered + row, begin + tl.where(i < num_decodes, 1, count))


def begin_states(
    table: SlotTable,
    rows: torch.Tensor,
    positions: torch.Tensor,
    query_starts: torch.Tensor,
    num_decodes: int,
) -> StateRows:
    """Gather the states of rows int64 [R] for a step; the table is then as the step leaves it.

    Args:
        positions: int64 [T]. query_starts: int32 [R + 1].
        num_decodes: leading rows of which only the first token enters the state.
    """
    num_rows = len(rows)

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=rows.device)

    gathered = StateRows(
        starts=query_starts,
        begins=empty(num_rows, dtype=torch.int64),
        sources=empty(num_rows),
        slots=empty(num_rows),
        replays=empty(num_rows),
        snapshot_ends=empty(num_rows, MAX_SNAPSHOTS, dtype=torch.int64),
        snapshot_slots=empty(num_rows, MAX_SNAPSHOTS),
    )
    if kernels_run_on(rows.device):
        _begin_kernel[(num_rows,)](rows, positions, table, gathered, num_decodes, num_warps=1)
        return gathered
    return begin_states_torch(table, rows, positions, query_starts, num_decodes)


def begin_states_torch(
    table: SlotTable,
    rows: torch.Tensor,
    positions: torch.Tensor,
    query_starts: torch.Tensor,
    num_decodes: int,
) -> StateRows:
    starts = query_starts.to(torch.int64)
    begins, counts = positions[starts[:-1]], starts[1:] - starts[:-1]
    slots = table.slots[rows]
    is_row = slots != NULL_SLOT
    gathered = StateRows(
        starts=query_starts,
        begins=begins,
        sources=table.sources[rows],
        slots=slots,
        replays=torch.where(is_row, begins - table.entered[rows], 0).to(torch.int32),
        snapshot_ends=table.snapshot_ends[rows],
        snapshot_slots=table.snapshot_slots[rows],
    )
    counts[:num_decodes] = 1
    table.sources[rows[is_row]] = slots[is_row]
    table.entered[rows[is_row]] = (begins + counts)[is_row]
    return gathered
