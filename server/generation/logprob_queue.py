"""Logprobs on their way from the engine to a reply."""

from __future__ import annotations

import numpy as np

from engine.arrays import LogprobArrays

_FLAT, _TOP = ("chosen", "ranks", "kept"), ("top_ids", "top_logprobs")


class LogprobQueue:
    """The logprobs of tokens that were not given out yet, of one choice.

    Args:
        num_top, num_explicit: top tokens and explicit ids a position has; what is pushed may have
            more. None for as many as what is pushed has, always the same.
    """

    def __init__(self, num_top: int | None = None, num_explicit: int | None = None) -> None:
        self._num_top = num_top
        self._num_explicit = num_explicit
        self._parts: list[tuple[LogprobArrays, int, int]] = []

    def push(self, arrays: LogprobArrays, start: int = 0, stop: int | None = None) -> None:
        """Append the positions of arrays from `start` to `stop`; the arrays are kept."""
        self._parts.append((arrays, start, len(arrays.chosen) if stop is None else stop))

    def place_of_one(self) -> tuple[LogprobArrays, int] | None:
        """Where the next position is in the arrays that were pushed; None if there is none."""
        return self._parts[0][:2] if self._parts else None

    def take(self, count: int) -> LogprobArrays | None:
        """Remove the first `count` positions, or all if there are fewer; None if there are none."""
        if not self._parts:
            return None
        taken: list[tuple[LogprobArrays, slice]] = []
        while self._parts:
            arrays, start, stop = self._parts[0]
            upto = min(start + count, stop)
            taken.append((arrays, slice(start, upto)))
            count -= upto - start
            if upto < stop:
                self._parts[0] = (arrays, upto, stop)
                break
            del self._parts[0]
            if not count:  # one part alone is no copy
                break
        return self._join(taken)

    def _join(self, parts: list[tuple[LogprobArrays, slice]]) -> LogprobArrays:
        """The positions in arrays of their own, or views where all are of one array."""
        if len(parts) == 1:
            [(arrays, at)] = parts
            return LogprobArrays(
                chosen=arrays.chosen[at],
                ranks=arrays.ranks[at],
                top_ids=arrays.top_ids[at, : self._num_top],
                top_logprobs=arrays.top_logprobs[at, : self._num_top],
                explicit=arrays.explicit[at, : self._num_explicit],
                kept=arrays.kept[at],
            )
        columns = {name: [getattr(arrays, name)[at] for arrays, at in parts] for name in _FLAT}
        for name in _TOP:
            columns[name] = [getattr(arrays, name)[at, : self._num_top] for arrays, at in parts]
        columns["explicit"] = [arrays.explicit[at, : self._num_explicit] for arrays, at in parts]
        return LogprobArrays(**{name: np.concatenate(column) for name, column in columns.items()})
