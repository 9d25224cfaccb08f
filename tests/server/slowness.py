"""How slow this machine is now, so that limits of time hold on a busy one too."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

REFERENCE_S = 0.006
"""Processor time of `_reference` on an idle core of the machine that limits are for."""

_TEXT = ",".join(str(i / 7) for i in range(100_000))


def _reference() -> None:
    """Split and join, which is what writing a reply is."""
    parts = _TEXT.split(",")
    pairs = [""] * (2 * len(parts))
    pairs[0::2] = pairs[1::2] = parts
    assert len("".join(parts)) * 2 == len("".join(pairs))


def slowness() -> float:
    """How many times slower this machine is now than the idle one; at least 1."""
    return max(fastest(_reference) / REFERENCE_S, 1.0)


def fastest(work: Callable[[], object], attempts: int = 12) -> float:
    """The least processor time of some attempts, in seconds, without what a tracer costs.

    Where coverage is counted, every line of the server is traced.
    """
    times = []
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        for _ in range(attempts):
            began = time.thread_time()
            work()
            times.append(time.thread_time() - began)
    finally:
        sys.settrace(tracer)
    return min(times)
