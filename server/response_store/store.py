"""Stored responses as handlers see them: everything off the event loop, on one thread."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from server.config import ResponseStoreConfig
from server.response_store.database import ResponseDatabase
from server.response_store.records import (
    GeneratedRun,
    Json,
    NewResponse,
    StoredConversation,
    StoredReply,
    StoreError,
)
from server.work.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")

LOOK_S = 0.2
"""Seconds between two looks at which running responses shall end: another front may have been
asked."""
TOUCH_S = 5.0
"""Seconds between two signs that running responses still run."""


class ResponseStore:
    """The responses of all clients. Errors of the file are `StoreError`."""

    def __init__(self, config: ResponseStoreConfig) -> None:
        self._config = config
        self._worker = Worker()
        self._database: ResponseDatabase | None = None
        self._running: dict[int, Callable[[], None]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def begin(self, new: NewResponse, on_cancel: Callable[[], None]) -> int:
        """Add a response that runs from now on; returns its key.

        Args:
            on_cancel: called on the event loop when a client cancels it.

        Raises:
            TakenIdError: the id is that of another.
        """
        key = await self._call(ResponseDatabase.begin, new)
        self._running[key] = on_cancel
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return key

    async def update(self, key: int, reply: Json) -> None:
        """Write a running response as it is now."""
        await self._call(ResponseDatabase.update, key, reply)

    async def finish(
        self, key: int, status: str, reply: Json, output: Sequence[Json], run: GeneratedRun | None
    ) -> None:
        """Write how a response ended."""
        self._running.pop(key, None)
        await self._call(ResponseDatabase.finish, key, status, reply, output, run)

    async def discard(self, key: int) -> None:
        """Remove a response that came to nothing."""
        self._running.pop(key, None)
        await self._call(ResponseDatabase.remove, key)

    async def get(self, owner: bytes, response_id: str) -> StoredReply | None:
        """A response as it was last written; None where this owner has none of that id."""
        return await self._call(ResponseDatabase.get, owner, response_id)

    async def delete(self, owner: bytes, response_id: str) -> bool:
        """Remove a response; returns whether it was there."""
        return await self._call(ResponseDatabase.delete, owner, response_id)

    async def conversation(
        self, owner: bytes, response_id: str, max_bytes: int
    ) -> StoredConversation | None:
        """The items up to the end of a response; None where this owner has none of that id.

        Raises:
            BrokenChainError: an earlier response is gone.
            TooLargeError: they take more than `max_bytes`.
        """
        return await self._call(ResponseDatabase.conversation, owner, response_id, max_bytes)

    async def input_items(
        self, owner: bytes, response_id: str, max_bytes: int
    ) -> list[Json] | None:
        """The items that a response continues, as `conversation` has them."""
        return await self._call(ResponseDatabase.input_items, owner, response_id, max_bytes)

    async def items(self, owner: bytes, ids: Sequence[str], max_bytes: int) -> list[Json | None]:
        """The latest item of each id; None where this owner has none of that id.

        Raises:
            TooLargeError: they take more than `max_bytes`, each as often as it is named.
        """
        return await self._call(ResponseDatabase.items, owner, ids, max_bytes)

    async def cancel(self, key: int) -> None:
        """End a running response, whichever front runs it."""
        if (on_cancel := self._running.get(key)) is not None:
            on_cancel()
        else:
            await self._call(ResponseDatabase.cancel, key)

    async def _watch(self) -> None:
        """Look after running responses while there are any."""
        touched = time.monotonic()
        try:
            while self._running:
                await asyncio.sleep(LOOK_S)
                with contextlib.suppress(StoreError):  # whoever writes next has to name it
                    for key in await self._call(ResponseDatabase.to_cancel):
                        if (on_cancel := self._running.get(key)) is not None:
                            on_cancel()
                    if time.monotonic() - touched >= TOUCH_S:
                        touched = time.monotonic()
                        await self._call(ResponseDatabase.touch, list(self._running))
        finally:
            self._watching = None

    async def _call(
        self,
        method: Callable[Concatenate[ResponseDatabase, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        def call() -> T:
            if self._database is None:
                self._database = ResponseDatabase(self._config)
            return method(self._database, *args, **kwargs)

        return await self._worker.run(call)

    def close(self) -> None:
        """Let the thread end once it has closed the file; what is written stays."""
        if self._watching is not None:
            self._watching.cancel()
        self._worker.close(self._close_file)

    def _close_file(self) -> None:
        if self._database is not None:
            self._database.close()
