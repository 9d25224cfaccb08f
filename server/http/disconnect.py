"""Ends work for a client that went away, or that reads no more, without any middleware."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Receive

STALL_S = 60.0
"""Seconds after which a client that took nothing meanwhile is given up."""


class ClientGoneError(Exception):
    """The client went away; there is nobody to answer."""


class CancelOnDisconnect:
    """A context whose block is cancelled, and raises `ClientGoneError`, once the client is gone.

    The request's body must have been read: all that `receive` then reports is the disconnect.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._watcher.cancel()
        if self._gone and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            raise ClientGoneError from None


class UnreadClock:
    """A clock of one connection; it runs only while bytes wait, so that writing costs no more.

    Args:
        transport: that holds the bytes.
        on_stall: called where none of them went out for `STALL_S`.
    """

    def __init__(self, transport: asyncio.Transport, on_stall: Callable[[], None]) -> None:
        self._transport = transport
        self._on_stall = on_stall
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0

    def start(self) -> None:
        """Let the clock run while bytes wait, none being added; one that runs goes on."""
        unsent = self._transport.get_write_buffer_size()
        if self._timer is None and unsent:
            self._unsent = unsent
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(STALL_S, self._look)

    def stop(self) -> None:
        """Let the clock run no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() < self._unsent:
            self.start()
        else:
            self._on_stall()
