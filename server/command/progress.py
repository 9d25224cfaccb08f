"""The start of the engine as a terminal shows it: a bar for the phase it is in.

In a log file each phase is a line, which the engine writes itself when the phase has ended.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

from tqdm import tqdm

TICK_S = 0.5
"""Seconds between two looks at the clock."""
_KNOWN = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}]"
_UNKNOWN = "{desc}: {elapsed}"


class ProgressBar:
    """A bar on standard error that is gone once it is closed; none where that is no terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._phase = ""

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Show how far a phase is, as `engine.progress.Listener`."""
        if not sys.stderr.isatty():
            return
        if done == total > 0:
            self.close()
            return
        layout = _KNOWN if total else _UNKNOWN
        if self._bar is None or phase != self._phase:
            self.close()
            self._phase = phase
            self._bar = _new_bar(phase, total, layout)
        self._bar.total, self._bar.bar_format, self._bar.n = total or None, layout, done
        self._bar.refresh()

    async def tick(self) -> None:
        """Let the bar's clock go on, where nothing else is known, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            if self._bar is not None:
                self._bar.refresh()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _new_bar(phase: str, total: int, layout: str) -> Any:
    # Tqdm's own lock is one of several processes, which would be reported as a leak at the end.
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0  # no thread
    return tqdm(
        desc=phase,
        total=total or None,
        bar_format=layout,
        leave=False,
        mininterval=0,
        file=sys.stderr,
    )
