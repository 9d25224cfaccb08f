"""A step's rows as layers that keep states see them, made from the table of `RowStates`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine.kernels.begin_states import begin_states
from engine.memory.states import RowStates, StepStates


def step_states(
    states: RowStates | None,
    rows: torch.Tensor,
    positions: torch.Tensor,
    query_starts: torch.Tensor,
    query_starts_np: npt.NDArray[np.int32],
    num_decodes: int,
) -> StepStates | None:
    """Begin a step of rows int64 [R], of which the first decode; None where nothing keeps a state.

    Once for each step, right before its layers run: the table is then as they leave it.

    Args:
        positions: int64 [T]. query_starts: int32 [R + 1], device; the same on the host.
    """
    if states is None:
        return None
    gathered = begin_states(states.table, rows, positions, query_starts, num_decodes)
    return states.parts(gathered, query_starts_np, num_decodes)
