"""Ends work for a client that went away, without any middleware in between."""

from __future__ import annotations

import asyncio

from starlette.types import Receive


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
