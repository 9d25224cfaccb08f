"""The progress of a start, told to whoever shows it. Like logging, one for the whole process."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator

Listener = Callable[[str, int, int], None]
"""Is told of a phase, how many of its parts are done, and how many there are, 0 if not known. A
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
    """Let `listener` be told from now on."""
    global _listener
    _listener = listener


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """A phase of the start: told at its begin and end, and logged with its time."""
    global _phase, _reported_at
    _phase, _reported_at = name, -math.inf  # its first report is told at once
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
