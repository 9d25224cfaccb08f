"""Reading a request's body: bounded in size, and never long on the event loop.

Parsing JSON holds Python's lock from end to end, so a thread would not help: a body above
`INLINE_BYTES` is parsed and checked in another process, from which ids come back as arrays.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from starlette.requests import Request
from starlette.types import Receive

from server.errors import ApiError
from server.http.account import header
from server.http.disconnect import ClientGoneError
from server.schema.base import Wire, decode

INLINE_BYTES = 512 << 10
DRAINED_BYTES = 256 << 20
"""A body over the limit is read to its end, up to this, so that the client sees the answer."""


class BodyReader:
    """Turns bodies into wire types."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_bytes = max_body_bytes
        self._pool: ProcessPoolExecutor | None = None

    async def read(self, request: Request, wire: type[Wire]) -> Wire:
        """The body as `wire`; raises `ApiError` for whatever is wrong with it."""
        _check_content_type(header(request.scope, b"content-type"))
        raw = await self._receive(request.receive, header(request.scope, b"content-length"))
        if len(raw) <= INLINE_BYTES:
            return decode(wire, raw)
        return await self._decode_elsewhere(wire, raw)

    async def _receive(self, receive: Receive, declared: str | None) -> bytes:
        chunks: list[bytes] = []
        size = int(declared) if declared and declared.isdigit() else 0
        too_long = size > self._max_bytes
        size = 0
        more = True
        while more and size <= DRAINED_BYTES:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(chunk)
            too_long = too_long or size > self._max_bytes
            if too_long:
                chunks.clear()
            else:
                chunks.append(chunk)
        if too_long:
            raise self._too_long(declared or str(size))
        return b"".join(chunks)

    def _too_long(self, size: str) -> ApiError:
        return ApiError(
            413,
            f"the body must be at most {self._max_bytes} bytes (--max-body-bytes), got {size}",
            code="body_too_large",
            headers={"connection": "close"},
        )

    async def _decode_elsewhere(self, wire: type[Wire], raw: bytes) -> Wire:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_follow_parent)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, decode, wire, raw)
        except BrokenProcessPool:
            self._pool = None
            raise

    def close(self) -> None:
        """End the other process, if there is one."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _check_content_type(value: str | None) -> None:
    kind = (value or "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(415, f"content-type must be application/json, got {kind!r}")


def _follow_parent() -> None:
    """Runs in the other process: the terminal's signals are the parent's, its end is ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()
