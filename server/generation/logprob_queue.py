"""Logprobs on their way from the engine to a reply."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.arrays import LogprobArrays

_FLAT, _TOP = ("chosen", "ranks", "kept"), ("top_ids", "top_logprobs")


class LonePosition(NamedTuple):
    """Where the logprobs of one token are among those of its step.

    Attributes:
        num_top, num_explicit: as of `LogprobQueue`.
    """

    arrays: LogprobArrays
    i: int
    num_top: int | None
    num_explicit: int | None

    def alone(self) -> LogprobArrays:
        """Views of this position."""
        at = slice(self.i, self.i + 1)
        return _views(self.arrays, at, self.num_top, self.num_explicit)


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

    def take_lone(self) -> LonePosition | None:
        """Remove the first position, and say where it is; None if there is none."""
        if not self._parts:
            return None
        arrays, start, stop = self._parts[0]
        if start + 1 < stop:
            self._parts[0] = (arrays, start + 1, stop)
        else:
            del self._parts[0]
        return LonePosition(arrays, start, self._num_top, self._num_explicit)

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
            return _views(*parts[0], self._num_top, self._num_explicit)
        columns = {name: [getattr(arrays, name)[at] for arrays, at in parts] for name in _FLAT}
        for name in _TOP:
            columns[name] = [getattr(arrays, name)[at, : self._num_top] for arrays, at in parts]
        columns["explicit"] = [arrays.explicit[at, : self._num_explicit] for arrays, at in parts]
        return LogprobArrays(**{name: np.concatenate(column) for name, column in columns.items()})


def _views(
    arrays: LogprobArrays, at: slice, num_top: int | None, num_explicit: int | None
) -> LogprobArrays:
    """Some of the positions, as wide as they are wanted."""
    return LogprobArrays(
        chosen=arrays.chosen[at],
        ranks=arrays.ranks[at],
        top_ids=arrays.top_ids[at, :num_top],
        top_logprobs=arrays.top_logprobs[at, :num_top],
        explicit=arrays.explicit[at, :num_explicit],
        kept=arrays.kept[at],
    )
