"""Where choices spend their time and how many tokens steps have, as histograms. No torch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engine.request import (
    Int64Array,
)
from engine.rows import Choice
from engine.stats import HistogramStats, TimingStats

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Counts of values up to each of some bounds, ascending, and of those above all."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = np.array(bounds, dtype=np.float64)
        self._counts: Int64Array = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._total = 0.0

    def add(self, values: npt.ArrayLike) -> None:
        """Count values [n]."""
        found = np.asarray(values, dtype=np.float64)
        np.add.at(self._counts, np.searchsorted(self._bounds, found), 1)
        self._total += float(found.sum())

    def stats(self) -> HistogramStats:
        """The counts so far."""
        return HistogramStats(counts=self._counts.copy(), total=self._total)


class Timings:
    """Follows choices from submission to end; what did not end by itself is not counted."""

    def __init__(self) -> None:
        self._queue, self._prefill = Histogram(SECONDS), Histogram(SECONDS)
        self._decode, self._inference = Histogram(SECONDS), Histogram(SECONDS)
        self._step_tokens = Histogram(STEP_TOKENS)

    def queued(self, choices: Iterable[Choice]) -> None:
        """Choices were submitted."""
        now = time.monotonic()
        for choice in choices:
            choice.queued_at = now

    def started(self, choices: Iterable[Choice]) -> None:
        """Choices got a row; again after a preemption."""
        now = time.monotonic()
        for choice in choices:
            choice.started_at = choice.started_at or now

    def drew(self, choices: Iterable[Choice]) -> None:
        """Choices' first tokens were read back."""
        now = time.monotonic()
        for choice in choices:
            choice.drew_at = now

    def ended(self, choices: Sequence[Choice]) -> None:
        """Choices that drew a token have ended."""
        if not choices:
            return
        queued, started, drew = np.array(
            [(choice.queued_at, choice.started_at, choice.drew_at) for choice in choices]
        ).T
        now = time.monotonic()
        self._queue.add(started - queued)
        self._prefill.add(drew - started)
        self._decode.add(now - drew)
        self._inference.add(now - started)

    def stepped(self, num_tokens: int) -> None:
        """A step of so many tokens was read back."""
        self._step_tokens.add([num_tokens])

    def stats(self) -> TimingStats:
        """All histograms so far."""
        return TimingStats(
            queue=self._queue.stats(),
            prefill=self._prefill.stats(),
            decode=self._decode.stats(),
            inference=self._inference.stats(),
            step_tokens=self._step_tokens.stats(),
        )
