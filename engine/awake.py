"""Time in which this process ran: seconds in which it was stopped do not count.

A process that is stopped by a signal, paused with its container, or held up by its machine finds
its limits of time passed when it goes on, although whoever it waits for may have been stopped with
it, or has spoken meanwhile. Limits that end something for another's silence count by this clock.
"""

from __future__ import annotations

import time

LONGEST_S = 1.0
"""Seconds between two ticks count as at most so many."""

LATE_S = 2.0
"""Seconds for which a process may be held up without a line about it."""


class AwakeClock:
    """Seconds since it was made, without those in which nobody ticked it.

    Whoever owns it ticks it several times a second.

    Attributes:
        seconds: counted up to the last tick.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ticked_at = time.monotonic()

    def tick(self) -> float:
        """Count the time since the last tick; returns the seconds of it that are left out."""
        now = time.monotonic()
        passed, self._ticked_at = now - self._ticked_at, now
        counted = min(passed, LONGEST_S)
        self.seconds += counted
        return passed - counted
