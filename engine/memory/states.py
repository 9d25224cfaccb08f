"""States by row: what layers keep in a fixed number of bytes, however many tokens a row has.

A *slot* holds the state of one row after some number of tokens, in every layer that keeps one:

    0                null. A row that begins has it as its source; padding writes to it nothing
    1 + row          of a row
    1 + max_rows     where states go that nobody reads again
    2 + max_rows ..  snapshots, in the order of `engine.memory.snapshots`

A row's state lacks the drafts of its last step, whose inputs wait in a ring beside it: the next
step enters those that were accepted before its own tokens. So a refused draft needs no rollback.
Which tokens a state has is a number on the device, as all of this table, so that graphs hold it.

A snapshot is restored by being the source of a row's next step, which stores to the row's own slot.
It is made by the step that enters the token before its end. Steps run in the order in which they
are planned, so a plan may give a row a snapshot that an earlier step reads, but none that its own
step reads for another row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.memory.snapshots import MAX_SNAPSHOTS, NO_SNAPSHOT
from engine.memory.state_rows import NULL_SLOT, Extent, StateRows
from engine.plan import StepPlan
from sampling.device.mirror import Writes

OTHER_SLOTS = 2
"""Slots that are neither of rows nor of snapshots."""
NEVER = 1 << 60
"""The end of a snapshot that is not wanted."""


class StateTensor(NamedTuple):
    """One tensor of a layer's state in a slot, such as a matrix a head or a ring of inputs."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes in a slot."""
        return math.prod(self.shape) * self.dtype.itemsize


class StateSpec(NamedTuple):
    """What one layer keeps of a row.

    Attributes:
        tensors: with room for a step's drafts.
        chunk: in prefilled rows, the layer makes snapshots at multiples of so many tokens.
    """

    tensors: tuple[StateTensor, ...]
    chunk: int = 1

    @property
    def num_bytes(self) -> int:
        """Bytes in a slot."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    def allocate(self, num_slots: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        """The layer's tensors [num_slots, *shape], zeros."""
        return tuple(
            torch.zeros((num_slots, *tensor.shape), dtype=tensor.dtype, device=device)
            for tensor in self.tensors
        )


def bytes_per_slot(specs: Sequence[StateSpec]) -> int:
    """Bytes of a row's state over all layers."""
    return sum(spec.num_bytes for spec in specs)


def snapshot_multiple(specs: Sequence[StateSpec], block_size: int) -> int:
    """Snapshots end at multiples of so many tokens: of blocks, and of every layer's chunks."""
    return math.lcm(block_size, *(spec.chunk for spec in specs))


class StatePart(NamedTuple):
    """Rows of one kind in a step, whose `starts` are among the step's tokens.

    Rows that decode bring one certain token and drafts after it. A row's kind is known from
    its plan, never from the number of its tokens.
    """

    rows: StateRows
    extent: Extent


@dataclass(frozen=True)
class StepStates:
    """One step as layers that keep states see it.

    Attributes:
        layers: of each layer its tensors [num_slots, *shape], in the order of the model's specs.
        parts: one after another: the rows that decode, then those that prefill, as far as there
            are any; of scoring, rows and then those that begin from the states that they leave.
    """

    layers: Sequence[tuple[torch.Tensor, ...]]
    parts: Sequence[StatePart]


class SlotTable(NamedTuple):
    """What the device knows of rows' states; one kernel argument.

    Attributes:
        slots: int32 [max_rows + 1], of each row; the scratch row's is null.
        sources: int32 [max_rows + 1], the slot that its next step reads.
        entered: int64 [max_rows + 1], the number of tokens in that state.
        snapshot_ends: int64 [max_rows + 1, MAX_SNAPSHOTS], ascending; `NEVER` for none.
        snapshot_slots: int32 [max_rows + 1, MAX_SNAPSHOTS].
    """

    slots: torch.Tensor
    sources: torch.Tensor
    entered: torch.Tensor
    snapshot_ends: torch.Tensor
    snapshot_slots: torch.Tensor


class RowStates:
    """Owns the states of rows, their snapshots and the table of them.

    Attributes:
        layers: as of `StepStates`.
    """

    def __init__(
        self,
        specs: Sequence[StateSpec],
        max_rows: int,
        num_snapshots: int,
        device: torch.device,
    ) -> None:
        self._unread = 1 + max_rows
        self._first_snapshot = 2 + max_rows
        num_slots = self._first_snapshot + num_snapshots
        self.layers = [spec.allocate(num_slots, device) for spec in specs]
        slots = torch.arange(1, 2 + max_rows, dtype=torch.int32)
        slots[max_rows] = NULL_SLOT
        shape = (max_rows + 1, MAX_SNAPSHOTS)
        self.table = SlotTable(
            slots=slots.to(device),
            sources=torch.zeros(max_rows + 1, dtype=torch.int32, device=device),
            entered=torch.zeros(max_rows + 1, dtype=torch.int64, device=device),
            snapshot_ends=torch.full(shape, NEVER, dtype=torch.int64, device=device),
            snapshot_slots=torch.zeros(shape, dtype=torch.int32, device=device),
        )

    def take(self, plan: StepPlan) -> list[Writes]:
        """What is to be published of a plan before its step: states restored, snapshots wanted."""
        table, writes = self.table, []
        if plan.admissions:
            rows = _int64(each.row for each in plan.admissions)
            restored = _int64(each.snapshot for each in plan.admissions)
            computed = _int64(each.num_computed for each in plan.admissions)
            writes += [
                Writes(table.sources, rows, self._slots_of(restored)),
                Writes(table.entered, rows, computed),
                Writes(table.snapshot_ends, rows, NEVER),
            ]
        if plan.snapshots:
            rows = _int64(each.row for each in plan.snapshots)
            ends = np.full((len(rows), MAX_SNAPSHOTS), NEVER, dtype=np.int64)
            snapshots = np.full_like(ends, NO_SNAPSHOT)
            for i, each in enumerate(plan.snapshots):
                ends[i, : len(each.ends)] = each.ends
                snapshots[i, : len(each.ends)] = each.snapshots
            writes += [
                Writes(table.snapshot_ends, rows, ends),
                Writes(table.snapshot_slots, rows, self._slots_of(snapshots)),
            ]
        return writes

    def _slots_of(self, snapshots: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        slots = np.where(snapshots == NO_SNAPSHOT, NULL_SLOT, self._first_snapshot + snapshots - 1)
        return slots.astype(np.int32)

    def of_rows(
        self,
        query_starts: torch.Tensor,
        query_starts_np: npt.NDArray[np.int32],
        positions: torch.Tensor,
        sources: torch.Tensor,
        targets: torch.Tensor,
        bounds: Sequence[int],
    ) -> StepStates:
        """The states of R rows that no choice holds; all their tokens are kept.

        Args:
            query_starts: int32 [R + 1], on the device and on the host. positions: int64 [T].
            sources, targets: int32 [R], the snapshots that rows begin from and leave; rows that
                leave `NO_SNAPSHOT` are not gone on with.
            bounds: of the parts' rows, from 0 to R; layers run the parts one after another.
        """
        shape = (len(sources), MAX_SNAPSHOTS)
        shifted = sources + (self._first_snapshot - 1)
        left = targets + (self._first_snapshot - 1)
        rows = StateRows(
            starts=query_starts,
            begins=positions[query_starts[:-1].to(torch.int64)],
            sources=torch.where(sources == NO_SNAPSHOT, NULL_SLOT, shifted),
            slots=torch.where(targets == NO_SNAPSHOT, self._unread, left),
            replays=torch.zeros_like(sources),
            snapshot_ends=torch.full(shape, NEVER, dtype=torch.int64, device=sources.device),
            snapshot_slots=torch.zeros(shape, dtype=torch.int32, device=sources.device),
        )
        parts = [_part(rows, query_starts_np, *pair, num_certain=None) for pair in pairwise(bounds)]
        return StepStates(self.layers, parts)

    def parts(
        self,
        rows: StateRows,
        query_starts_np: npt.NDArray[np.int32],
        num_decodes: int,
    ) -> StepStates:
        """A step's rows as layers see them, of which the first `num_decodes` decode.

        Args:
            rows: of the whole step. query_starts_np: its `starts` on the host.
        """
        num_rows, parts = len(query_starts_np) - 1, []
        for first, last, num_certain in ((0, num_decodes, 1), (num_decodes, num_rows, None)):
            if first < last:
                parts.append(_part(rows, query_starts_np, first, last, num_certain))
        return StepStates(self.layers, parts)


def _part(
    rows: StateRows,
    query_starts_np: npt.NDArray[np.int32],
    first: int,
    last: int,
    num_certain: int | None,
) -> StatePart:
    """Rows first:last of a step; `num_certain` as of `Extent`."""
    own = StateRows(rows.starts[first : last + 1], *(x[first:last] for x in rows[1:]))
    if first:  # kernels are compiled for fields that begin as tensors do
        own = StateRows(*(each.clone() for each in own))
    longest = int(np.diff(query_starts_np[first : last + 1]).max())
    return StatePart(own, Extent(longest, num_certain))


def text_states(
    specs: Sequence[StateSpec], device: torch.device
) -> Callable[[int, int], StepStates | None]:
    """The states of a lone text that is computed part by part, outside of any engine.

    Returns:
        A function that gives the states of tokens start:end, which follow those of the last call;
        None where no layer keeps a state.
    """
    if not specs:
        return lambda start, end: None
    layers = [spec.allocate(2, device) for spec in specs]

    def numbers(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    def part(start: int, end: int) -> StepStates:
        rows = StateRows(
            starts=numbers(0, end - start),
            begins=numbers(start, dtype=torch.int64),
            sources=numbers(1),
            slots=numbers(1),
            replays=numbers(0),
            snapshot_ends=numbers(NEVER, dtype=torch.int64)[None],
            snapshot_slots=numbers(NULL_SLOT)[None],
        )
        extent = Extent(max_len=end - start)
        return StepStates(layers, [StatePart(rows, extent)])

    return part


def _int64(values: Iterable[int]) -> npt.NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64)
