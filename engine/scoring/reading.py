"""Enters the results of steps of scoring into the requests whose positions they read. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from engine.contracts.scoring import ScoringHandle, ScoringResult
from engine.scoring.progress import ScoringProgress


@dataclass(frozen=True)
class ReadSpan:
    """Positions first .. first + count - 1 of a request, which a step reads."""

    progress: ScoringProgress
    first: int
    count: int

    @property
    def is_wanted(self) -> bool:
        """Whether there are positions, of a request that still waits for them."""
        return bool(self.count) and not self.progress.ended

    def enter(self, result: ScoringResult, there: slice) -> bool:
        """Enter what a step read of the positions; False, and nothing entered, where it is NaN."""
        progress, mine = self.progress, slice(self.first, self.first + self.count)
        if progress.request.embeds:
            hidden = result.hidden[there]
            if np.isnan(hidden).any():
                return False
            progress.hidden.append(hidden)
            return True
        if np.isnan(result.others[there]).any():
            return False
        progress.values[mine] = result.values[there, : progress.values.shape[1]]
        progress.others[mine] = result.others[there]
        progress.best_ids[mine] = result.best_ids[there]
        progress.best[mine] = result.best[there]
        progress.log_sums[mine] = result.log_sums[there]
        return True


@dataclass(frozen=True)
class ScoringReads:
    """A step of scoring that was launched, and what it reads, in the order of its result."""

    handle: ScoringHandle
    spans: list[ReadSpan]

    def enter(self, result: ScoringResult) -> Iterator[tuple[ReadSpan, bool]]:
        """Enter the result span by span; yields those that were wanted, and whether they are good.

        Hidden states and logprobs are counted apart in a result.
        """
        start = embedded = 0
        for span in self.spans:
            if span.progress.request.embeds:
                there = slice(embedded, embedded := embedded + span.count)
            else:
                there = slice(start, start := start + span.count)
            if span.is_wanted:
                yield span, span.enter(result, there)
