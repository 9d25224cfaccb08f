"""The frontends of an engine process: when each was heard, and when it was sent anything."""

from __future__ import annotations

import time
from collections.abc import Set

from engine.awake import AwakeClock

STATS_S = 0.5
"""Seconds without an output after which a frontend is sent statistics: a long prompt or a request
of many items may take longer before there is anything to report."""

FRESH_S = 0.01
"""Seconds for which the statistics that a frontend was sent are fresh. A small model's steps are
far shorter, and statistics with each would take a fifth of what the host does for it."""

SILENCE_S = 10.0
"""Seconds without a message, while the engine itself ran, after which a frontend counts as gone.
Frontends send one twice a second, but one whose process is stopped or whose event loop is held up
does not. One whose socket has ended is gone at once."""


class Frontends:
    """The frontends that have sent something and have not fallen silent since."""

    def __init__(self) -> None:
        self._awake = AwakeClock()
        self._heard_at: dict[bytes, float] = {}
        self._sent_at: dict[bytes, float] = {}
        self._stats_at: dict[bytes, float] = {}

    def heard(self, frontend: bytes) -> None:
        """Note a message of a frontend, perhaps its first."""
        self._heard_at[frontend] = self._awake.seconds
        self._sent_at.setdefault(frontend, time.monotonic())

    def has_fresh_stats(self, frontend: bytes) -> bool:
        """Whether it was sent statistics within `FRESH_S`."""
        return time.monotonic() < self._stats_at.get(frontend, 0.0) + FRESH_S

    def sent(self, frontend: bytes, *, with_stats: bool) -> None:
        """Note an output for a frontend."""
        if frontend in self._sent_at:
            self._sent_at[frontend] = now = time.monotonic()
            if with_stats:
                self._stats_at[frontend] = now

    @property
    def known(self) -> Set[bytes]:
        """All of them."""
        return self._heard_at.keys()

    def without_news(self) -> Set[bytes]:
        """Those that got nothing for `STATS_S`, or whose last output left old statistics behind."""
        now, stats_at = time.monotonic(), self._stats_at
        return {
            frontend
            for frontend, sent_at in self._sent_at.items()
            if now > sent_at + STATS_S
            or stats_at.get(frontend, sent_at) < min(sent_at, now - FRESH_S)
        }

    def take_silent(self) -> list[bytes]:
        """Forget those that sent nothing for `SILENCE_S`, and return them."""
        self._awake.tick()
        before = self._awake.seconds - SILENCE_S
        silent = [frontend for frontend, heard_at in self._heard_at.items() if heard_at < before]
        for frontend in silent:
            self.forget(frontend)
        return silent

    def forget(self, frontend: bytes) -> None:
        """Forget one that is gone; twice does no harm."""
        for times in (self._heard_at, self._sent_at, self._stats_at):
            times.pop(frontend, None)
