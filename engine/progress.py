"""The progress of a start, for whoever shows it. Like logging, one for the whole process."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

TICK_S = 1.0
"""Seconds between two looks at the clock."""
_CLEAR = "\r\x1b[K"

Listener = Callable[[str, int, int], None]
"""Called with a phase, how many of its parts are done, and how many there are, 0 if not known. A
phase ends with done equal to the total."""

REPORT_S = 0.1
"""Least seconds between two reports within a phase."""

logger = logging.getLogger(__name__)


def _nobody(phase: str, done: int, total: int) -> None:
    """Listen to nothing."""


_listener: Listener = _nobody
_phase = ""
_reported_at = 0.0


def on_progress(listener: Listener) -> None:
    """Report to `listener` from now on."""
    global _listener
    _listener = listener


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """A phase of the start: reported at its beginning and end, and logged with its time."""
    global _phase, _reported_at
    _phase, _reported_at = name, -math.inf  # its first report is sent at once
    began = time.monotonic()
    _listener(name, 0, 0)
    try:
        yield
    finally:
        _phase = ""
        _listener(name, 1, 1)
    logger.info("%s took %.1f s", name, time.monotonic() - began)


def report(done: int, total: int = 0) -> None:
    """Tell how far the present phase is; nothing outside of one, and at most ten times a second."""
    global _reported_at
    now = time.monotonic()
    if _phase and done != total and now - _reported_at >= REPORT_S:
        _reported_at = now
        _listener(_phase, done, total)


class Ticker:
    """Shows how many results there are and the seconds so far; nothing where it is no terminal."""

    def __init__(self, out: TextIO, what: str) -> None:
        self._out = out
        self._what = what
        self._began = time.monotonic()
        self._count = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Ticker:
        if self._out.isatty():
            self._thread = threading.Thread(target=self._tick, daemon=True)
            self._thread.start()
        return self

    def print(self, line: str) -> None:
        """Write a line of a result in place of the shown one."""
        with self._lock:
            self._count += 1
            self._out.write(f"{self._clear}{line}\n")
            self._out.flush()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._out.write(_CLEAR)

    @property
    def _clear(self) -> str:
        return "" if self._thread is None else _CLEAR

    def _tick(self) -> None:
        while not self._ended.wait(TICK_S):
            with self._lock:
                seconds = time.monotonic() - self._began
                self._out.write(f"{_CLEAR}{self._count} {self._what} so far, {seconds:.0f} s ...")
                self._out.flush()
