"""A thread for work in Python that would hold up the event loop.

There is one only: threads that compute take turns at Python's lock with the event loop, and each
of them lengthens its wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """Runs functions one after another, off the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tailrace-worker")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result; the event loop goes on meanwhile."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def close(self, last: Callable[[], object] | None = None) -> None:
        """Let the thread end: at once, or after all that waits for it and `last`."""
        if last is not None:
            self._pool.submit(last)
        self._pool.shutdown(wait=False, cancel_futures=last is None)
