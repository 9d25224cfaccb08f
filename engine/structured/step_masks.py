"""Lays out the masks of one step: those of grammars, and those of single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from llguidance import LLMatcher

from engine.arrays import Int32Array, Int64Array
from engine.structured.masks import MaskFiller
from engine.structured.matcher import WantedMasks


class StepFill:
    """Collects what a step's choices want, and fills it at once.

    Args:
        slots: int32 [N], where the slot of each logit row's mask is written; all are -1.

    Attributes:
        places: in the plan, of the choices with a mask of a grammar.
    """

    def __init__(self, filler: MaskFiller, slots: Int32Array) -> None:
        self.places: list[int] = []
        self._filler = filler
        self._slots = slots
        self._rows: list[int] = []
        self._runs: list[tuple[LLMatcher, list[int]]] = []
        self._also: dict[int, int] = {}
        self._forced: dict[int, int] = {}
        self._unended: list[int] = []
        self._spare: list[int] = []
        self._filled: Future[Int64Array] | None = None
        self._count = 0

    def add_plain(
        self,
        places: Int64Array,
        rows: Int64Array,
        matchers: Sequence[LLMatcher],
        drafts: list[list[int]],
    ) -> None:
        """Add choices all of whose logit rows draw under their grammars.

        Args:
            places: of each choice in the plan. rows: the first logit row of each.
        """
        self.places += places.tolist()
        self._rows += rows.tolist()
        self._runs += zip(matchers, drafts, strict=True)

    def add(self, place: int, start: int, wanted: WantedMasks) -> None:
        """Add a choice.

        Args:
            place: of the choice in the plan. start: its first logit row.
        """
        if wanted.runs:
            self.places.append(place)
        self._rows += [start + run.first for run in wanted.runs]
        self._runs += [(run.matcher, run.drafts) for run in wanted.runs]
        self._also.update((start + i, token_id) for i, token_id in wanted.also.items())
        self._forced.update((start + i, token_id) for i, token_id in wanted.forced.items())
        self._unended += [start + i for i in wanted.unended if i not in wanted.forced]

    def start(self) -> None:
        """Begin to fill the masks of grammars, beside the calling thread."""
        if self._runs:
            self._filled = self._filler.start(self._runs)

    def fill_grammars(self) -> bool:
        """Wait for the masks of grammars. Where that raises, there are none.

        Returns:
            Whether all matchers could still follow their grammars.
        """
        if self._filled is None:
            return True
        counts = self._filled.result()
        could = not any(matcher.is_error() for matcher, _ in self._runs)
        if not any(drafts for _, drafts in self._runs):
            self._count = len(self._runs)
            self._slots[self._rows] = np.arange(self._count)
            return could
        ends = np.cumsum([1 + len(drafts) for _, drafts in self._runs])
        firsts = np.concatenate([[0], ends[:-1]])
        self._count = int(ends[-1])
        runs = zip(self._rows, firsts.tolist(), ends.tolist(), counts.tolist(), strict=True)
        for row, first, end, count in runs:
            self._slots[row : row + count] = np.arange(first, first + count)
            self._spare += range(first + count, end)
        return could

    def fill_tokens(self) -> int:
        """Fill what is beside, in front and in place of grammars, once these are filled.

        All rows that may not end share one mask.

        Returns:
            how many of the buffer's first slots are in use; a choice has as many as logit rows.
        """
        for row, token_id in self._also.items():
            if (slot := int(self._slots[row])) >= 0:
                self._filler.allow(slot, token_id)
            else:
                self._put(row, token_id)
        for row, token_id in self._forced.items():
            slot = int(self._slots[row])
            if slot < 0:
                self._put(row, token_id)
            elif self._filler.allows(slot, token_id):
                self._filler.put(slot, token_id)
        if self._unended:
            self._slots[self._unended] = slot = self._free_slot()
            self._filler.put_all_but_ends(slot)
        return self._count

    def _put(self, row: int, token_id: int) -> None:
        """Write a mask of one token for a row that has none."""
        self._slots[row] = slot = self._free_slot()
        self._filler.put(slot, token_id)

    def _free_slot(self) -> int:
        if self._spare:
            return self._spare.pop()
        self._count += 1
        return self._count - 1
