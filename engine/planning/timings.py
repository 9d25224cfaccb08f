"""Where choices spend their time and how many tokens steps have, as histograms. No torch."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from engine.rows import Choice
from engine.stats import HistogramStats, TimingStats

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Counts of values up to each of some bounds, ascending, and of those above all."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count a value. A step has so few that arrays would cost it more."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def stats(self) -> HistogramStats:
        """The counts so far."""
        return HistogramStats(counts=tuple(self._counts), total=self._total)


class Timings:
    """Follows choices from submission to end, a stop string or a client's going included."""

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

    def ended(self, choice: Choice) -> None:
        """A choice has ended; one that never drew a token is not counted."""
        if not choice.drew_at:
            return
        now = time.monotonic()
        self._queue.add(choice.started_at - choice.queued_at)
        self._prefill.add(choice.drew_at - choice.started_at)
        self._decode.add(now - choice.drew_at)
        self._inference.add(now - choice.started_at)

    def stepped(self, num_tokens: int) -> None:
        """A step of so many tokens was read back."""
        self._step_tokens.add(num_tokens)

    def stats(self) -> TimingStats:
        """All histograms so far."""
        return TimingStats(
            queue=self._queue.stats(),
            prefill=self._prefill.stats(),
            decode=self._decode.stats(),
            inference=self._inference.stats(),
            step_tokens=self._step_tokens.stats(),
        )
