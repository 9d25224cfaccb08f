"""Histograms of the times of choices and of the sizes of steps. No torch."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from engine.rows import Choice
from engine.stats import HistogramStats, TimingStats

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1, 2.5, 5, 10)
PREEMPTIONS = (0, 1, 2, 5, 10, 20, 50)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Counts values up to each of some ascending bounds, and values above all of them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count a value, without arrays: a step has too few values for these to pay."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def stats(self) -> HistogramStats:
        """The counts so far."""
        return HistogramStats(counts=tuple(self._counts), total=self._total)


class Timings:
    """Measures choices from submission to end, however they end."""

    def __init__(self) -> None:
        self._queue, self._prefill = Histogram(SECONDS), Histogram(SECONDS)
        self._decode, self._inference = Histogram(SECONDS), Histogram(SECONDS)
        self._first_token, self._later_token = Histogram(SECONDS), Histogram(TOKEN_SECONDS)
        self._preemptions = Histogram(PREEMPTIONS)
        self._step_tokens = Histogram(STEP_TOKENS)

    def queued(self, choices: Iterable[Choice]) -> None:
        """Note that choices were submitted."""
        now = time.monotonic()
        for choice in choices:
            choice.queued_at = now

    def started(self, choices: Iterable[Choice]) -> None:
        """Note that choices got a row. Only a choice's first row counts."""
        now = time.monotonic()
        for choice in choices:
            choice.started_at = choice.started_at or now

    def drew(self, choices: Iterable[Choice]) -> None:
        """Note that the first tokens of choices were read back."""
        now = time.monotonic()
        for choice in choices:
            choice.drew_at = now
            if choice.index == 0:
                self.first_token(now - choice.queued_at)

    def first_token(self, seconds: float) -> None:
        """Count the seconds from a request's submission to its first choice's first token."""
        self._first_token.add(seconds)

    def ended(self, choice: Choice, num_drawn: int) -> None:
        """Count the times of a choice that ended; one that never drew a token is left out.

        Args:
            num_drawn: its tokens.
        """
        if not choice.drew_at:
            return
        now = time.monotonic()
        self._queue.add(choice.started_at - choice.queued_at)
        self._prefill.add(choice.drew_at - choice.started_at)
        self._decode.add(now - choice.drew_at)
        self._inference.add(now - choice.started_at)
        self._preemptions.add(choice.num_preemptions)
        if num_drawn > 1:
            self._later_token.add((now - choice.drew_at) / (num_drawn - 1))

    def stepped(self, num_tokens: int) -> None:
        """Count a step of `num_tokens` tokens that was read back."""
        self._step_tokens.add(num_tokens)

    def stats(self) -> TimingStats:
        """All histograms so far."""
        return TimingStats(
            queue=self._queue.stats(),
            prefill=self._prefill.stats(),
            decode=self._decode.stats(),
            inference=self._inference.stats(),
            first_token=self._first_token.stats(),
            later_token=self._later_token.stats(),
            preemptions=self._preemptions.stats(),
            step_tokens=self._step_tokens.stats(),
        )
