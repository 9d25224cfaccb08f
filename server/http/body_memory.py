"""Memory for large bodies: so many bytes at once, and given back to the system afterwards."""

from __future__ import annotations

import asyncio
from collections import deque

from server.errors import overloaded
from server.work.processes import trim_memory

LARGE_BYTES = 128 << 20
"""Bytes of large bodies that one front holds at once, or one body, however large."""
PARSED_BYTES = 64 << 20
"""Bytes of what large bodies were parsed into, until a prompt was made of it. Less than of bodies:
of memory for small objects Python gives back what is free in one piece, so some of it stays."""
OBJECT_BYTES = 1 << 10
"""What a JSON object takes once it is parsed, the text in it aside: a message some 850 bytes, and
200 more as a template takes it."""
MAX_WAITING = 1024
"""Large bodies that wait for memory; their clients' sockets are not read meanwhile."""
TRIM_S = 0.5
"""Seconds after a large body until memory is given back, for all that end by then."""


class Lease:
    """Bytes that one body may take, until released."""

    def __init__(self, memory: BodyMemory, num_bytes: int) -> None:
        self._memory = memory
        self._num_bytes = num_bytes

    def release(self) -> None:
        """Let others have them; done again at the request's end, for what was kept until then."""
        self._memory.give_back(self._num_bytes)
        self._num_bytes = 0


def parsed_bytes(raw: bytes | bytearray) -> int:
    """About what a body takes once it is parsed."""
    return len(raw) + OBJECT_BYTES * raw.count(b"{")


class BodyMemory:
    """Leases memory in the order in which it is asked for."""

    def __init__(self, limit: int = LARGE_BYTES) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._trimming: asyncio.TimerHandle | None = None

    async def lease(self, num_bytes: int, *, may_wait: bool = True) -> Lease:
        """Wait for so many bytes; more than there are count as all.

        Raises:
            ApiError: 429, too many wait, or this one may not.
        """
        num_bytes = min(num_bytes, self._limit)
        if self._waiting or self._taken + num_bytes > self._limit:
            if not may_wait:
                raise overloaded("the memory for large bodies is taken")
            if len(self._waiting) >= MAX_WAITING:
                raise overloaded(f"{MAX_WAITING} large bodies wait to be read")
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((num_bytes, turn))
            try:
                await turn
            except asyncio.CancelledError:
                was_granted = turn.done() and not turn.cancelled()
                self.give_back(num_bytes if was_granted else 0)  # others may have waited for it
                raise
        else:
            self._taken += num_bytes
        return Lease(self, num_bytes)

    def give_back(self, num_bytes: int) -> None:
        """Take bytes back, let those have them who wait, and give what is free to the system."""
        self._taken -= num_bytes
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.cancelled():
                if self._taken + wanted > self._limit:
                    break
                self._taken += wanted
                turn.set_result(None)
            self._waiting.popleft()
        if self._trimming is None:
            self._trimming = asyncio.get_running_loop().call_later(TRIM_S, self._trim)

    def _trim(self) -> None:
        """Trim on a thread: the C library takes some milliseconds."""
        self._trimming = None
        asyncio.get_running_loop().run_in_executor(None, trim_memory)
