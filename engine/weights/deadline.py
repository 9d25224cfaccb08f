"""Waiting for others no longer than a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, make: Callable[[], T]) -> T:
    """What `make` returns or raises, in a thread of its own, which is left behind where it takes
    longer.

    torch's stores keep to their own timeouts twice over, and to none where somebody accepts a
    connection and never answers, and NCCL waits for its peers without end; meanwhile this process
    would compute nothing for anybody.

    Raises:
        TimeoutError: it takes longer.
    """
    found: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            found.put((make(), None))
        except Exception as error:
            found.put((None, error))

    threading.Thread(target=run, name="waits for a group", daemon=True).start()
    try:
        made, error = found.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError("nobody there answered") from None
    if error is not None:
        raise error
    assert made is not None
    return made
