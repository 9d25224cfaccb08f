"""Fills the masks of one step, by llguidance's threads and without the interpreter's lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import (
    consume_token_par,
    fill_next_token_bitmask_par,
    fill_next_token_bitmask_par_with_draft_tokens,
)

from engine.arrays import Int32Array, Int64Array


def default_threads() -> int:
    """All CPUs that the process may use but one, which plans meanwhile; from 1 to 32."""
    return min(max(len(os.sched_getaffinity(0)) - 1, 1), 32)


class _Layout(NamedTuple):
    """Which masks go into which slots of the buffer.

    Attributes:
        plain: matchers without drafts, and their slots.
        drafted: matchers, their first slots, and their drafts.
        drafted_places: of those among all matchers.
    """

    plain: list[tuple[LLMatcher, int]]
    drafted: list[tuple[LLMatcher, int, list[int]]]
    drafted_places: list[int]

    @classmethod
    def of(cls, wanted: Sequence[tuple[LLMatcher, list[int]]]) -> _Layout:
        """The layout in which each matcher's masks come one after another."""
        if not any(drafts for _, drafts in wanted):
            return cls([(matcher, i) for i, (matcher, _) in enumerate(wanted)], [], [])
        layout, slot = cls([], [], []), 0
        for place, (matcher, drafts) in enumerate(wanted):
            if drafts:
                layout.drafted.append((matcher, slot, drafts))
                layout.drafted_places.append(place)
            else:
                layout.plain.append((matcher, slot))
            slot += 1 + len(drafts)
        return layout


class MaskFiller:
    """Moves matchers on and writes their masks into a buffer.

    Args:
        buffer: int32 [max_masks, ceil(vocab_size / 32)], a bit a token, low bit first.
        eos_token_ids: ids that end a text, after which there is no mask.
    """

    def __init__(self, buffer: Int32Array, eos_token_ids: Sequence[int], num_threads: int) -> None:
        self._buffer = buffer
        self._words = buffer.view(np.uint32)
        self._eos = np.array(eos_token_ids)
        self._executor = LLExecutor(num_threads)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def consume(self, wanted: Sequence[tuple[LLMatcher, list[int]]]) -> bool:
        """Let each matcher consume its tokens; one that cannot is left in its error state.

        Returns:
            Whether all could.
        """
        could = True
        for place in range(max((len(ids) for _, ids in wanted), default=0)):
            pairs = [(matcher, ids[place]) for matcher, ids in wanted if place < len(ids)]
            could &= all(consume_token_par(self._executor, pairs))
        return could

    def start(self, wanted: Sequence[tuple[LLMatcher, list[int]]]) -> Future[Int64Array]:
        """`fill` beside the calling thread, which goes on once it could only wait.

        The interpreter is handed over at once: a thread that asks for it while another computes
        would get it milliseconds later.
        """
        begun = threading.Event()

        def fill() -> Int64Array:
            try:
                return self.fill(wanted, begun)
            finally:
                begun.set()

        filled = self._thread.submit(fill)
        begun.wait()
        return filled

    def fill(
        self,
        wanted: Sequence[tuple[LLMatcher, list[int]]],
        begun: threading.Event | None = None,
    ) -> Int64Array:
        """Write each matcher's mask, and those after the drafts that follow, one after another.

        The matchers stay where they are. Each has 1 + its number of drafts masks in the buffer, in
        order; those after a draft that the grammar refuses are undefined.

        Args:
            begun: set when nothing but llguidance's work is left, or little more.

        Returns:
            How many of each matcher's masks are defined, int64 [len(wanted)].
        """
        layout = _Layout.of(wanted)
        if begun is not None:
            begun.set()
        if layout.plain:
            fill_next_token_bitmask_par(self._executor, layout.plain, self._buffer)
        if layout.drafted:
            fill_next_token_bitmask_par_with_draft_tokens(
                self._executor, layout.drafted, self._buffer
            )
        counts = np.ones(len(wanted), dtype=np.int64)
        for place, (_, slot, drafts) in zip(layout.drafted_places, layout.drafted, strict=True):
            counts[place] = 1 + self._num_allowed(slot, drafts)
        return counts

    def put(self, slot: int, token_id: int) -> None:
        """Write a mask that allows one token."""
        self._buffer[slot] = 0
        self.allow(slot, token_id)

    def put_all_but_ends(self, slot: int) -> None:
        """Write a mask that allows every token but those that end a text."""
        self._buffer[slot] = -1
        for token_id in self._eos.tolist():
            self._words[slot, token_id >> 5] &= ~np.uint32(1 << (token_id & 31))

    def allow(self, slot: int, token_id: int) -> None:
        """Let a mask allow one more token."""
        self._words[slot, token_id >> 5] |= np.uint32(1 << (token_id & 31))

    def allows(self, slot: int, token_id: int) -> bool:
        """Whether a mask allows a token."""
        return bool(int(self._words[slot, token_id >> 5]) >> (token_id & 31) & 1)

    def _num_allowed(self, slot: int, drafts: list[int]) -> int:
        """The number of a matcher's first drafts that its masks allow and that do not end it."""
        ids = np.array(drafts)
        words = self._buffer[slot + np.arange(len(ids)), ids >> 5]
        goes_on = ((words >> (ids & 31)) & 1).astype(np.bool_) & ~np.isin(ids, self._eos)
        # What comes after the first that is refused is undefined, but not looked at here.
        return int(np.logical_and.accumulate(goes_on).sum())
