"""Serving, draining, dying: what the server is about to do, and how many requests are inside."""

from __future__ import annotations

import asyncio


class Lifecycle:
    """One server's state.

    Attributes:
        draining: new work is refused, what is inside is finished.
    """

    def __init__(self) -> None:
        self.draining = False
        self._num_inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def enter(self) -> None:
        """A request came in."""
        self._num_inside += 1
        self._empty.clear()

    def leave(self) -> None:
        """It was answered."""
        self._num_inside -= 1
        if self._num_inside == 0:
            self._empty.set()

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new work and wait for the rest; whether all of it ended in time."""
        self.draining = True
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
