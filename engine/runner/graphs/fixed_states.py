"""A step's rows of states at fixed addresses, where a graph's recurrences read them.

A graph launches as many programs as it was captured with. So a step has rows that decode and rows
that prefill, each after one another from the first, and after them rows of no tokens and without a
slot, which read and write nothing. The last row of all has the tokens that pad the step: it has no
slot either, and their outputs are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.memory.snapshots import MAX_SNAPSHOTS
from engine.memory.state_rows import NULL_SLOT, Extent, StateRows
from engine.memory.states import StatePart, StepStates

PROMPTS, DECODES = 8, 64
"""Most rows of a step that prefill, and that decode. A row of no tokens costs its programs' start
in every layer, which for these numbers is some 10 us."""


class FixedStates:
    """Holds the rows of one step after another.

    Args:
        layers: as of `StepStates`.
        decode_len: most tokens that a row which decodes brings.
    """

    def __init__(
        self, layers: Sequence[tuple[torch.Tensor, ...]], decode_len: int, device: torch.device
    ) -> None:
        self._layers, self._decode_len = layers, decode_len
        self._prompts, self._decodes = _no_rows(PROMPTS + 1, device), _no_rows(DECODES, device)

    def of_size(self, size: int, *, mixed: bool) -> StepStates:
        """The states of a step of `size` tokens, of rows that prefill alone or of both kinds."""
        parts = [StatePart(self._prompts, Extent(size))]
        if mixed:
            parts.insert(0, StatePart(self._decodes, Extent(self._decode_len, num_certain=1)))
        return StepStates(self._layers, parts)

    def fits(self, states: StepStates) -> bool:
        """Whether a step's rows can be put here."""
        kinds = [part.extent.num_certain is None for part in states.parts]
        return kinds in ([True], [False], [False, True]) and all(
            len(part.rows.slots) <= (PROMPTS if is_prompt else DECODES)
            and (is_prompt or part.extent.max_len <= self._decode_len)
            for part, is_prompt in zip(states.parts, kinds, strict=True)
        )

    def put(self, states: StepStates, num_tokens: int, size: int) -> None:
        """Take a step's rows, which fit, into `of_size(size)`.

        Args:
            num_tokens: of the step, without those that pad it.
        """
        by_kind = {part.extent.num_certain is None: part for part in states.parts}
        _put(self._decodes, by_kind.get(False), num_tokens)
        _put(self._prompts, by_kind.get(True), num_tokens)
        self._prompts.starts[-1] = size


def _no_rows(count: int, device: torch.device) -> StateRows:
    def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return StateRows(
        starts=zeros(count + 1),
        begins=zeros(count, dtype=torch.int64),
        sources=zeros(count),
        slots=zeros(count),
        replays=zeros(count),
        snapshot_ends=zeros(count, MAX_SNAPSHOTS, dtype=torch.int64),
        snapshot_slots=zeros(count, MAX_SNAPSHOTS),
    )


def _put(fixed: StateRows, part: StatePart | None, num_tokens: int) -> None:
    """Take a part's rows; those after them begin where the part ends, or the step."""
    if part is None:
        fixed.slots.fill_(NULL_SLOT)
        fixed.starts.fill_(num_tokens)
        return
    count = len(part.rows.slots)
    fixed.starts[: count + 1] = part.rows.starts
    fixed.starts[count + 1 :] = part.rows.starts[-1]
    for ours, theirs in zip(fixed[1:], part.rows[1:], strict=True):
        ours[:count] = theirs
    fixed.slots[count:].fill_(NULL_SLOT)
