"""Replies as server-sent events: one choice a chunk, whatever has arrived in one write."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, Protocol

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from server.errors import CLIENT_GONE, ApiError
from server.generation.choice import Piece, ReplyChoice
from server.generation.generation import Generation
from server.generation.render import Renderer
from server.http.account import account_of
from server.http.disconnect import CancelOnDisconnect, ClientGoneError
from server.http.reply import send_in_parts

logger = logging.getLogger("tailrace")

DONE = b"data: [DONE]\n\n"
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class StreamWriter(Protocol):
    """Writes the frames of one stream.

    Attributes:
        begins_big: the first frames are to be written off the event loop.
    """

    @property
    def begins_big(self) -> bool: ...

    def chunks(self, changed: list[ReplyChoice]) -> bytes:
        """Write frames of what these choices can give out now; there may be none."""
        ...

    def end(self) -> bytes:
        """Write what follows the last choice."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """Write the end of a stream that an error ended after the headers."""
        ...


class ChunkWriter:
    """Writes pieces as OpenAI's chunks; the part that all of them share is written once."""

    def __init__(self, generation: Generation, renderer: Renderer) -> None:
        self._generation = generation
        self._renderer = renderer
        self._prepared = generation.prepared
        self._form = self._prepared.spec.form
        self._fingerprint, self._head = "", b""
        self._follow_fingerprint()
        self._tail = b'],"usage":null}\n\n' if self._form.usage_at_end else b"]}\n\n"

    def chunks(self, changed: list[ReplyChoice]) -> bytes:
        """Write frames of what these choices can give out now; there may be none."""
        self._follow_fingerprint()
        parts = []
        for choice in changed:
            for piece in self._pieces_of(choice):
                for body in self._renderer.chunks(choice.index, choice.prompt_idx, piece):
                    parts += [self._head, body, self._with_top(self._usage_tail())]
        if parts and self._generation.ended:
            parts[-1] = self._last_tail(parts[-1])
        return b"".join(parts)

    def _follow_fingerprint(self) -> None:
        """Write the head anew where other weights draw by now."""
        fingerprint = str(self._prepared.fingerprint)
        if fingerprint == self._fingerprint:
            return
        head: dict[str, Any] = {
            "id": self._prepared.spec.reply_id,
            "object": self._renderer.chunk_object,
            "created": self._prepared.created,
            "model": self._prepared.spec.model,
            "system_fingerprint": fingerprint,
        }
        self._fingerprint = fingerprint
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['

    def _pieces_of(self, choice: ReplyChoice) -> Iterable[Piece]:
        """What a choice can give out: a chunk a token where each has values as JSON.

        Their text was made with that of all rows of their step, so that a chunk of several costs
        more than several chunks.
        """
        if self._form.num_top is not None and not self._form.packed:
            return choice.take_by_token()
        piece = choice.take()
        return () if piece is None else (piece,)

    def _with_top(self, tail: bytes) -> bytes:
        """The tail of a chunk, and what it has beside its choice."""
        top = self._renderer.top_fields()
        return b"]," + orjson.dumps(top)[1:-1] + tail[1:] if top else tail

    def _last_tail(self, tail: bytes) -> bytes:
        """The tail of the last chunk that has a choice, and what is reported of the whole."""
        whole: dict[str, Any] = {}
        if (metrics := self._generation.tally.draft_metrics()) is not None:
            whole["metrics"] = metrics
        if self._prepared.ignored_keywords:
            whole["ignored_keywords"] = self._prepared.ignored_keywords
        return b"]," + orjson.dumps(whole)[1:-1] + tail[1:] if whole else tail

    def _usage_tail(self) -> bytes:
        if not self._form.usage_always:
            return self._tail
        return b'],"usage":' + orjson.dumps(self._usage()) + b"}\n\n"

    def _usage(self) -> dict[str, Any]:
        return self._renderer.usage(self._generation.tally.usage())

    @property
    def begins_big(self) -> bool:
        """Whether the first frames are to be written off the event loop."""
        return self._renderer.prompt_is_big

    def end(self) -> bytes:
        """Write the chunk of usage alone, where it was asked for, and the end."""
        if not self._form.usage_at_end:
            return DONE
        return self._head + b'],"usage":' + orjson.dumps(self._usage()) + b"}\n\n" + DONE

    def failure(self, error: ApiError) -> bytes:
        """Write an error as clients raise it, as they do an error reply, and the end."""
        return b"data: " + orjson.dumps(error.body()) + b"\n\n" + DONE


async def stream_reply(
    generation: Generation, writer: StreamWriter, receive: Receive
) -> StreamingResponse:
    """Wait for the engine's first result, so that early failures are HTTP errors."""
    try:
        with CancelOnDisconnect(receive):
            first = await generation.update()
            if generation.failure is not None:
                raise generation.failure
            if writer.begins_big:
                frames = await generation.prepared.served.worker.run(writer.chunks, first)
            else:
                frames = writer.chunks(first)
    except BaseException as error:
        generation.close("abort" if isinstance(error, ClientGoneError) else "error")
        raise
    return EventStream(generation, writer, frames)


def _outcome(status: int) -> str:
    if status == CLIENT_GONE:
        return "abort"
    return "server_error" if status >= 500 else "client_error"


class EventStream(StreamingResponse):
    """The reply of a stream; it owns the generation from here on.

    Args:
        frames: the first frames, which were written already.
    """

    def __init__(self, generation: Generation, writer: StreamWriter, frames: bytes) -> None:
        super().__init__((), headers=_HEADERS, media_type="text/event-stream")
        self._generation = generation
        self._writer = writer
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until all choices have ended, an error comes, or the client leaves."""
        account = account_of(scope)
        try:
            with CancelOnDisconnect(receive), self._generation:
                headers = self.raw_headers
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                error = await self._write(send)
            if error is not None:
                account.outcome, account.reason = _outcome(error.status), error.message
        except ClientGoneError:
            account.outcome = "abort"

    async def _write(self, send: Send) -> ApiError | None:
        """Write everything after the headers; returns the error that ended it, if one did."""
        error: ApiError | None = None
        inter_token = self._generation.prepared.served.metrics.inter_token
        recording = self._generation.recording
        try:
            await send_in_parts(send, self._frames, more=True)
            last = time.perf_counter()
            while changed := await self._generation.update():
                await send_in_parts(send, self._writer.chunks(changed), more=True)
                now = time.perf_counter()
                inter_token.observe(now - last)
                last = now
            inter_token.count()
            if recording is not None:
                await recording.settle(None)
            end = self._writer.end()
        except ApiError as caught:
            error = caught
        except Exception:
            logger.exception("a stream broke")
            error = ApiError(500, "internal error", code="internal_error")
        if error is not None:
            if recording is not None:
                await recording.settle(error)
            end = self._writer.failure(error)
        await send({"type": "http.response.body", "body": end, "more_body": False})
        return error
