"""One response on its way into the store, from its first event to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import numpy as np

from server.conversation.shaped_render import ShapedRenderer
from server.endpoints.responses.history import History, store_failed, stored_items
from server.endpoints.responses.shape import ResponseShape
from server.errors import CLIENT_GONE, ApiError, bad_request
from server.generation.generation import Generation
from server.response_store.records import GeneratedRun, NewResponse, StoreError, TakenIdError
from server.response_store.store import ResponseStore

logger = logging.getLogger("tailrace")

CANCELLED_CODE = "response_cancelled"


class ResponseRecording:
    """Keeps one response while it is generated and as it ends.

    A response that cannot be written is answered all the same, with `store` false. One whose client
    leaves, or that fails before its first byte, is not kept. One in the background has no client:
    it must be written, and is kept however it ends.

    Args:
        prompt_chars: of the text that it continues.

    Attributes:
        task: what makes a response in the background; None for others.
    """

    def __init__(
        self,
        store: ResponseStore,
        shape: ResponseShape,
        renderer: ShapedRenderer,
        generation: Generation,
        prompt_chars: int,
    ) -> None:
        self._store = store
        self._shape = shape
        self._renderer = renderer
        self._prompt_chars = prompt_chars
        self._key: int | None = None
        self._generation = generation
        self._is_cancelled = False
        self._ending: asyncio.Task[None] | None = None
        self.task: asyncio.Task[None] | None = None

    async def begin(self, owner: bytes, history: History, *, in_background: bool = False) -> None:
        """Note that it runs; raises a 400 for an id that is taken."""
        shape = self._shape
        shape.is_stored = True
        self._generation.recording = self
        new = NewResponse(
            id=shape.id,
            owner=owner,
            chain=history.chain,
            reply=shape.queued() if in_background else shape.running(),
            items=stored_items(history.own),
        )
        try:
            self._key = await self._store.begin(new, self._cancel)
        except TakenIdError:
            words = "request_id is that of a stored response"
            raise bad_request("request_id", words) from None
        except StoreError as error:
            if in_background:
                raise store_failed(error) from error
            self._give_up(error)

    async def note_start(self) -> None:
        """Write that the engine has begun it."""
        assert self._key is not None
        try:
            await self._store.update(self._key, self._shape.running())
        except StoreError as error:
            logger.warning("%s: its start is not stored: %s", self._shape.id, error)

    async def settle(self, error: ApiError | None) -> None:
        """Write how it ended, before the client gets it."""
        if error is not None:
            self._shape.break_off(error)
        if (key := self._key) is None:
            return
        self._key = None
        renderer, generation = self._renderer, self._generation
        if error is None:
            usage = renderer.usage(generation.tally.usage())
            reply = self._shape.reply(usage, renderer.extras(generation.tally.draft_metrics()))
        else:
            reply = self._shape.broken(error)
        run = GeneratedRun(self._prompt_chars, np.array(renderer.token_ids, dtype=np.int32))
        try:
            await self._store.finish(key, reply["status"], reply, reply["output"], run)
        except StoreError as failure:
            self._give_up(failure)

    def _give_up(self, error: StoreError) -> None:
        logger.warning("%s is not stored: %s", self._shape.id, error)
        self._shape.is_stored = False

    def _cancel(self) -> None:
        self._is_cancelled = True
        self._generation.cancel(cancelled())

    def close(self) -> None:
        """The generation has ended: what was not settled failed, or its client is gone."""
        if self._key is not None:
            self._ending = asyncio.create_task(self._end(self._key))

    def _end(self, key: int) -> Coroutine[Any, Any, None]:
        if self._is_cancelled:
            return self.settle(cancelled())
        self._key = None
        return self._discard(key)

    async def _discard(self, key: int) -> None:
        try:
            await self._store.discard(key)
        except StoreError as error:
            self._give_up(error)


def cancelled() -> ApiError:
    """The end of a response that a client cancelled."""
    return ApiError(CLIENT_GONE, "the response was cancelled", code=CANCELLED_CODE)
