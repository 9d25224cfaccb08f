"""Logprobs on their way from the engine to a reply."""

from __future__ import annotations

from engine.request import LogprobArrays


class LogprobQueue:
    """The logprobs of tokens that were not given out yet, of one choice."""

    def __init__(self) -> None:
        self._parts: list[LogprobArrays] = []

    def push(self, arrays: LogprobArrays) -> None:
        """Append positions, all as wide as those before; the arrays are kept."""
        self._parts.append(arrays)

    def take(self, count: int) -> LogprobArrays | None:
        """Remove the first `count` positions, or all if there are fewer; None if there are none."""
        if not self._parts:
            return None
        whole = self._parts[0] if len(self._parts) == 1 else LogprobArrays.concat(self._parts)
        self._parts = [whole.at(slice(count, None))] if count < len(whole.chosen) else []
        return whole.at(slice(count))
