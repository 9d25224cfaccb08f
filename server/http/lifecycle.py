"""The state of the server: whether it takes requests, and how many it works at."""

from __future__ import annotations

import asyncio


class Lifecycle:
    """Counts open requests, and lets them end before the server does.

    Attributes:
        draining: new requests are refused, open ones are finished.
    """

    def __init__(self) -> None:
        self.draining = False
        self._num_inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def enter(self) -> None:
        """Count a request that came in."""
        self._num_inside += 1
        self._empty.clear()

    def leave(self) -> None:
        """Stop counting a request that was answered."""
        self._num_inside -= 1
        if self._num_inside == 0:
            self._empty.set()

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for open ones; returns whether all ended in time."""
        self.draining = True
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
