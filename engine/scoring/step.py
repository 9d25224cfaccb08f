"""Rows of several scoring requests chosen for one step, within its tokens and blocks. No torch."""

from __future__ import annotations

import numpy as np

from engine.memory.blocks import BlockPool
from engine.memory.snapshots import SnapshotPool
from engine.scoring.packing import Rows
from engine.scoring.progress import ScoringProgress
from engine.scoring.states import STEM_SHARE


class ScoringStepRows:
    """The rows of a step, a request at a time.

    Args:
        max_tokens: the most tokens of a step.
        num_promised: blocks of the pool that are left to others.
        snapshots: of states, where layers keep them.

    Attributes:
        rows: what was added.
        budget: tokens that the step still holds.
    """

    def __init__(
        self,
        pool: BlockPool,
        max_tokens: int,
        num_promised: int,
        snapshots: SnapshotPool | None = None,
    ) -> None:
        self._pool = pool
        self._max_tokens = max_tokens
        self._num_promised = num_promised
        self._snapshots = snapshots
        self.rows: list[Rows] = []
        self._borrowed: list[int] = []
        self._borrowed_snapshots: list[int] = []
        self.budget = max_tokens

    def release(self) -> None:
        """Give back what only this step needed, which is launched: later steps come after it."""
        self._pool.release(self._borrowed)
        if self._snapshots is not None:
            for snapshot in self._borrowed_snapshots:
                self._snapshots.release(snapshot)

    def add(self, progress: ScoringProgress) -> bool:
        """Add what fits of a request: of its query, then of its items; returns whether any did."""
        num_before = len(self.rows)
        if count := self._fitting(progress.shared_len - progress.num_computed):
            self._add(progress.query_rows(count))
        if progress.num_computed < progress.shared_len:
            return len(self.rows) > num_before
        if not progress.planned and (self._is_last_alone(progress) or self._is_apart(progress)):
            self._add_apart(progress)
            if not progress.planned and not progress.is_within_item:
                self._add_items(progress, [], [])  # what is the request's own is in use
        else:
            own_stem = [] if progress.states is None else progress.states.stems
            self._add_items(progress, progress.spare, own_stem)
        return len(self.rows) > num_before

    def _add(self, rows: Rows) -> None:
        self.rows.append(rows)
        self.budget -= len(rows.token_ids)

    @property
    def _num_available(self) -> int:
        return max(self._pool.num_free - self._num_promised, 0)

    def _fitting(self, count: int) -> int:
        """The number of `count` tokens to add: all, or a part where no step could hold all."""
        if count <= self.budget:
            return count
        return self.budget if count > self._max_tokens else 0

    def _is_last_alone(self, progress: ScoringProgress) -> bool:
        """Whether one row is left, and fits: to add it as one of several takes the host longer."""
        is_last = progress.next_row + 1 == progress.layout.num_rows
        return is_last and not progress.num_split and progress.num_left <= self.budget

    def _is_apart(self, progress: ScoringProgress) -> bool:
        """Whether the rows of the next item are added one by one: no step may hold them all."""
        if progress.is_within_item:
            return True
        tokens, blocks = (
            int(size(progress.next_item, 1)[0])
            for size in (progress.layout.item_tokens, progress.layout.item_blocks)
        )
        return tokens > self._max_tokens or blocks > len(progress.spare) + self._num_available

    def _add_apart(self, progress: ScoringProgress) -> None:
        """Add rows of the next item, in the spare blocks and then in others, while they fit."""
        item, own = progress.next_item, progress.own_spare
        while True:
            is_stem = progress.layout.is_stem(progress.next_row)
            if not (count := min(progress.num_left, self.budget)):
                return
            self._add(progress.row_part(count, own))
            if progress.num_split or progress.planned or progress.next_item != item:
                return
            # What follows in this step needs blocks that no row of the step fills.
            own = progress.own_spare if is_stem else self._grant_row(progress)
            if not own:
                return

    def _grant_row(self, progress: ScoringProgress) -> list[int]:
        """Blocks for the whole next row; none where it would be split or they are too few."""
        count = int(progress.layout.num_blocks[progress.next_row])
        if progress.num_left > self.budget or count > self._num_available:
            return []
        return self._grant(count)

    def _grant(self, count: int) -> list[int]:
        granted = self._pool.grant(count)
        assert granted is not None, "blocks were counted before they were granted"
        self._borrowed += granted
        return granted

    def _borrow_stems(self, count: int) -> list[int]:
        """Snapshots for `count` stems, or as many as the step may have."""
        if self._snapshots is None:
            return []
        most = self._snapshots.num_snapshots // STEM_SHARE - len(self._borrowed_snapshots)
        borrowed = self._snapshots.reserve_up_to(min(count, most))
        self._borrowed_snapshots += borrowed
        return borrowed

    def _add_items(self, progress: ScoringProgress, spare: list[int], own_stem: list[int]) -> None:
        """Add the next items that fit whole.

        Args:
            spare: the first of their blocks. own_stem: the first of their stems' snapshots.
        """
        tokens = progress.layout.item_tokens(progress.next_item, self.budget)
        if not len(tokens):
            return
        num_blocks = np.cumsum(progress.layout.item_blocks(progress.next_item, self.budget))
        own = spare[: int(num_blocks[0])]
        count = min(
            int(np.searchsorted(np.cumsum(tokens), self.budget, side="right")),
            int(np.searchsorted(num_blocks - len(own), self._num_available, side="right")),
        )
        stems: list[int] = []
        if progress.states is not None and count:
            num_stems = np.cumsum(progress.layout.item_stems(progress.next_item, count))
            stems = own_stem[: int(num_stems[-1])]
            stems = stems + self._borrow_stems(int(num_stems[-1]) - len(stems))
            count = int(np.searchsorted(num_stems, len(stems), side="right"))
        if count:
            granted = self._grant(int(num_blocks[count - 1]) - len(own))
            self._add(progress.item_rows(count, own + granted, stems))
