"""Logprob arrays on their way from the engine to a reply: owned, cut, joined."""

from __future__ import annotations

import numpy as np

from engine.request import LogprobArrays


def own(arrays: LogprobArrays, num_top: int, num_explicit: int) -> LogprobArrays:
    """A copy of what this request asked for; a step's arrays are as wide as its widest row."""
    return LogprobArrays(
        chosen=arrays.chosen.copy(),
        ranks=arrays.ranks.copy(),
        top_ids=arrays.top_ids[:, :num_top].copy(),
        top_logprobs=arrays.top_logprobs[:, :num_top].copy(),
        explicit=arrays.explicit[:, :num_explicit].copy(),
    )


def cut(arrays: LogprobArrays, start: int, stop: int | None = None) -> LogprobArrays:
    """Positions start .. stop - 1."""
    part = slice(start, stop)
    return LogprobArrays(
        chosen=arrays.chosen[part],
        ranks=arrays.ranks[part],
        top_ids=arrays.top_ids[part],
        top_logprobs=arrays.top_logprobs[part],
        explicit=arrays.explicit[part],
    )


def join(parts: list[LogprobArrays]) -> LogprobArrays:
    """One after another; they are equally wide."""
    if len(parts) == 1:
        return parts[0]
    return LogprobArrays(
        chosen=np.concatenate([part.chosen for part in parts]),
        ranks=np.concatenate([part.ranks for part in parts]),
        top_ids=np.concatenate([part.top_ids for part in parts]),
        top_logprobs=np.concatenate([part.top_logprobs for part in parts]),
        explicit=np.concatenate([part.explicit for part in parts]),
    )


class ScoreQueue:
    """Logprobs of tokens that were not given out yet."""

    def __init__(self) -> None:
        self._parts: list[LogprobArrays] = []

    def push(self, arrays: LogprobArrays) -> None:
        """Append positions."""
        self._parts.append(arrays)

    def take(self, count: int) -> LogprobArrays | None:
        """The first `count` positions, removed; None where there is nothing."""
        if not self._parts:
            return None
        whole = join(self._parts)
        taken = cut(whole, 0, count)
        self._parts = [cut(whole, count)] if count < len(whole.chosen) else []
        return taken
