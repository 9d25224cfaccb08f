"""What the kernels of stateful layers are called with: rows, slots, snapshots, drafts.

A *slot* is an index into the tensors that hold states. A row's live slot is read and written by its
steps; a snapshot is a slot that is written once and copied from later. Every slot holds a state
after some number of tokens. A step's tokens that may be refused are not entered into the state:
their inputs go to a ring beside it, indexed by position, and the next step replays the accepted
ones before its own tokens. Where a row continues follows from positions alone, so a step needs no
count of accepted drafts, and a refused draft leaves no trace.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

NULL_SLOT = 0
"""The slot of padding rows: never read, never written."""


class StateRows(NamedTuple):
    """The rows of one call, R rows with T tokens packed one row after another.

    Attributes:
        starts: int32 [R + 1]; row r owns tokens starts[r]:starts[r + 1].
        begins: int64 [R]; the position of each row's first token. At 0 the state is zero,
            whatever the slot holds.
        sources: int32 [R]; the slot that holds the state before the call: the live slot, or a
            snapshot that a row begins from.
        slots: int32 [R]; the live slot, where the state goes. `NULL_SLOT` skips the row.
        replays: int32 [R]; accepted drafts before `begins` that the source's state lacks.
        snapshot_ends: int64 [R, S], ascending in a row; positions (numbers of tokens) after which
            the state is copied, if the call enters the token before; those of prefilled rows are
            multiples of `matrices.CHUNK`, or the row's end.
        snapshot_slots: int32 [R, S]; where to. `NULL_SLOT` where there is no snapshot.
    """

    starts: torch.Tensor
    begins: torch.Tensor
    sources: torch.Tensor
    slots: torch.Tensor
    replays: torch.Tensor
    snapshot_ends: torch.Tensor
    snapshot_slots: torch.Tensor


class Extent(NamedTuple):
    """What the host knows of a call's rows.

    Attributes:
        max_len: upper bound of a row's tokens.
        num_certain: how many leading tokens of each row cannot be refused; None: all of them.
    """

    max_len: int
    num_certain: int | None = None


def entered(rows: StateRows, extent: Extent) -> torch.Tensor:
    """The tokens in each row's state after the call, int64 [R]."""
    lens = (rows.starts[1:] - rows.starts[:-1]).long()
    if extent.num_certain is not None:
        lens = lens.clamp(max=extent.num_certain)
    return rows.begins + lens
