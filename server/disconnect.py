"""Ending work for a client that went away, without any middleware in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive


class ClientGoneError(Exception):
    """The client went away; there is nobody to answer."""


@asynccontextmanager
async def cancel_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client disconnects; it then ends in `ClientGoneError`.

    The request's body must have been read: `receive` then has only the disconnect to tell.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise ClientGoneError from None
        raise
    finally:
        watcher.cancel()
