"""`Replica`: an engine that works for servers in other processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import msgspec

from engine.client import EngineHandle
from engine.messages.request import Request
from engine.messages.step_output import Finish
from engine.submission import EngineDeadError, Submission
from server.fleet.adapters import HeldAdapters
from server.fleet.messages import (
    FleetRequest,
    Greeting,
    ReplicaReport,
    decode_request,
    encode_message,
    entry_output,
    scores_output,
)

WATCH_S = 0.5
"""Seconds between looks at an engine of which nobody asks anything."""


class Replica:
    """Works at requests that arrive as bytes, and reports what comes of them in bytes.

    A replica that outlived its engine would have the shortest queue of all, and draw every request
    to itself; so it ends with it.

    Args:
        name: of the replica, unique in the fleet.
        model: the identity of the engine's model.
        model_name: the model's folder or hub id.
        end: ends the replica, so that whoever waits for it learns that it is gone; gets the reason
            for which its engine cannot serve.

    Attributes:
        adapters: of its engine.
    """

    def __init__(
        self,
        engine: EngineHandle,
        name: str,
        model: str,
        model_name: str,
        end: Callable[[str], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._end = end
        self._name = name
        self._model = model
        self._model_name = model_name
        self._open: dict[str, int] = {}
        self.adapters = HeldAdapters(engine, name)

    async def work(self, raw: bytes) -> AsyncGenerator[bytes, None]:
        """Work at a request: yield a `Greeting`, then outputs until every choice has ended.

        Whoever stops to read aborts the request. What several steps had to tell while nobody read
        comes in one message.

        Raises:
            EngineDeadError: the engine is gone.
        """
        request = decode_request(raw)
        if request.model != self._model:
            yield encode_message(Greeting(replica=self._name, refusal=self._refusal(request.model)))
            return
        if (refusal := await self._adapter_refusal(request)) is not None:
            yield encode_message(Greeting(replica=self._name, refusal=refusal))
            return
        submission = await self._submit(request)
        self._open[request.key] = submission.handle
        try:
            yield encode_message(Greeting(replica=self._name))
            async for message in self._outputs(request, submission):
                yield message
        except EngineDeadError as error:
            await self._end(str(error))
            raise
        finally:
            del self._open[request.key]
            if not submission.finished:
                self._engine.abort(submission.handle)

    async def watch(self) -> None:
        """End the replica once its engine cannot serve, also where nobody asks it for anything."""
        while True:
            if (reason := self._engine.failure()) is not None:
                await self._end(reason)
                return
            await asyncio.sleep(WATCH_S)

    def abort(self, key: str, choice: int) -> None:
        """End one choice of a request, or all with -1; one that is not open is let be."""
        if (handle := self._open.get(key)) is not None:
            self._engine.abort(handle, choice)

    def report(self) -> ReplicaReport:
        """The state of the replica."""
        report = ReplicaReport(
            replica=self._name,
            model=self._model,
            model_name=self._model_name,
            info=self._engine.info,
            stats=self._engine.stats,
        )
        return self.adapters.entered_in(report)

    async def _adapter_refusal(self, request: FleetRequest) -> str | None:
        """Wait until the adapter of a request is there; why it is not."""
        if request.adapter_stamp is None:
            return None
        asked = request.generate or request.score
        assert asked is not None
        if await self.adapters.reach(asked.adapter, request.adapter_stamp):
            return None
        return f"replica {self._name} has not got the adapter {asked.adapter!r}"

    def _refusal(self, wanted: str) -> str:
        return (
            f"replica {self._name} serves {self._model_name} ({self._model}), the request is for "
            f"{wanted}: deploy the fleet again, with one model on every machine"
        )

    async def _submit(self, request: FleetRequest) -> Submission:
        handle = self._engine.new_handle()
        try:
            if request.score is not None:
                return self._engine.score(msgspec.structs.replace(request.score, handle=handle))
            assert request.generate is not None
            return self._engine.submit(msgspec.structs.replace(request.generate, handle=handle))
        except EngineDeadError as error:
            await self._end(str(error))
            raise

    async def _outputs(self, request: FleetRequest, submission: Submission) -> AsyncIterator[bytes]:
        """Messages of what comes of a request, addressed to the handle that the server gave it."""
        given: Request | None = request.generate
        handle = given.handle if given is not None else -1
        async for entries in submission:
            prompt_parts = submission.take_prompt_parts()
            if submission.prompt_logprobs is not None:
                prompt_parts.append(submission.prompt_logprobs)
                submission.prompt_logprobs = None  # reported once
            outputs = []
            for entry in entries:
                routes = None
                if entry.finish != Finish.RUNNING:
                    routes = submission.routes.pop(entry.choice, None)
                outputs.append(entry_output(entry, handle, prompt_parts, routes))
                prompt_parts = []
            yield encode_message(outputs)
        if submission.item_scores is not None:
            assert request.score is not None
            scores = scores_output(submission.item_scores, request.score.handle)
            yield encode_message([scores])
