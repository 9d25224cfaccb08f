"""Replies as server-sent events: one choice a chunk, whatever has arrived in one write."""

from __future__ import annotations

import logging
import time
from typing import Any

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from server.completions.choice import Piece, ReplyChoice
from server.completions.generation import Generation
from server.errors import ApiError
from server.http.account import account_of
from server.http.disconnect import CancelOnDisconnect, ClientGoneError
from server.http.worker import Worker
from server.metrics import Metrics

logger = logging.getLogger("tailrace")

DONE = b"data: [DONE]\n\n"
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_PLAIN_END = b',"logprobs":null,"finish_reason":null,"stop_reason":null}'


class ChunkWriter:
    """Pieces as frames; the part that all frames share is written once."""

    def __init__(self, generation: Generation) -> None:
        job = generation.job
        head: dict[str, Any] = {
            "id": job.reply_id,
            "object": "text_completion",
            "created": job.created,
            "model": job.model,
            "system_fingerprint": job.fingerprint,
        }
        self._generation = generation
        self._form = job.form
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if job.usage_at_end else b"]}\n\n"

    def chunks(self, changed: list[ReplyChoice]) -> bytes:
        """Frames of what these choices can give out now; may be empty."""
        parts = []
        for choice in changed:
            if (piece := choice.take()) is not None:
                parts += [self._head, self._body(choice, piece), self._usage_tail()]
        if parts and self._generation.ended:
            parts[-1] = self._with_metrics(parts[-1])
        return b"".join(parts)

    def _with_metrics(self, tail: bytes) -> bytes:
        """The tail of the last chunk that has a choice, with what became of all drafts."""
        metrics = self._generation.metrics()
        return tail if metrics is None else b'],"metrics":' + orjson.dumps(metrics) + tail[1:]

    def _body(self, choice: ReplyChoice, piece: Piece) -> bytes:
        form = self._form
        with_prompt = piece.first and form.shows_prompt
        if piece.finish_reason is None and not form.shows_tokens and not with_prompt:
            return b'{"index":%d,"text":%b%b' % (choice.index, orjson.dumps(piece.text), _PLAIN_END)
        renderer = self._generation.renderer
        return orjson.dumps(renderer.choice(choice.index, choice.prompt_idx, piece))

    def _usage_tail(self) -> bytes:
        if not self._generation.job.usage_always:
            return self._tail
        return b'],"usage":' + orjson.dumps(self._generation.usage()) + b"}\n\n"

    def usage(self) -> bytes:
        """The chunk of usage alone, where it was asked for."""
        if not self._generation.job.usage_at_end:
            return b""
        return self._head + b'],"usage":' + orjson.dumps(self._generation.usage()) + b"}\n\n"


def error_frame(error: ApiError) -> bytes:
    """An error after the headers; clients raise on the nested object."""
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"


async def stream_reply(
    generation: Generation, receive: Receive, *, worker: Worker, metrics: Metrics
) -> StreamingResponse:
    """Submit and wait for the engine's first result, so that early failures are HTTP errors."""
    began = time.perf_counter()
    try:
        with CancelOnDisconnect(receive):
            generation.submit()
            first = await generation.update()
            if generation.failure is not None:
                raise generation.failure
            writer = ChunkWriter(generation)
            if generation.renderer.prompt_is_big:
                frames = await worker.run(writer.chunks, first)
            else:
                frames = writer.chunks(first)
    except BaseException as error:
        generation.close("abort" if isinstance(error, ClientGoneError) else "error")
        raise
    metrics.first_token.observe(time.perf_counter() - began)
    return EventStream(generation, writer, frames, metrics)


class EventStream(StreamingResponse):
    """The rest of a stream, frames first; owns the generation from here on."""

    def __init__(
        self,
        generation: Generation,
        writer: ChunkWriter,
        frames: bytes,
        metrics: Metrics,
    ) -> None:
        super().__init__((), headers=_HEADERS, media_type="text/event-stream")
        self._generation = generation
        self._writer = writer
        self._frames = frames
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until all choices have ended, an error comes, or the client goes."""
        account = account_of(scope)
        try:
            with CancelOnDisconnect(receive), self._generation:
                headers = self.raw_headers
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                error = await self._write(send)
            if error is not None:
                account.outcome = "server_error"
        except ClientGoneError:
            account.outcome = "abort"

    async def _write(self, send: Send) -> ApiError | None:
        """Everything after the headers; returns the error that ended it."""
        error: ApiError | None = None
        try:
            await self._send(send, self._frames)
            last = time.perf_counter()
            while changed := await self._generation.update():
                await self._send(send, self._writer.chunks(changed))
                now = time.perf_counter()
                self._metrics.inter_token.observe(now - last)
                last = now
            end = self._writer.usage()
        except ApiError as caught:
            error = caught
        except Exception:
            logger.exception("a stream broke")
            error = ApiError(500, "internal error", code="internal_error")
        if error is not None:
            end = error_frame(error)
        await send({"type": "http.response.body", "body": end + DONE, "more_body": False})
        return error

    async def _send(self, send: Send, frames: bytes) -> None:
        if frames:
            await send({"type": "http.response.body", "body": frames, "more_body": True})
