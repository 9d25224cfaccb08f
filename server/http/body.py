"""Reading a request's body: bounded in size, and never long on the event loop.

Parsing JSON holds Python's lock from end to end, so a thread would not help: a body above
`INLINE_BYTES` is parsed and checked in another process, from which ids come back as arrays.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Receive

from server.errors import ApiError
from server.http.account import header
from server.http.child import follow_parent
from server.http.content import check_content_type, content_encoding, decompress
from server.http.disconnect import ClientGoneError
from server.schema.base import Body, BodyModel, decode, unknown_fields

INLINE_BYTES = 512 << 10
DRAINED_BYTES = 256 << 20
"""A body over the limit is read to its end, so that the client sees the answer; not one over this,
which is refused before it is read."""
SILENCE_S = 75.0
"""How long a client may take from one piece of its body to the next."""
NUM_PROCESSES = 2
"""Large bodies read at once: a second need not wait for one that takes seconds."""
_UNKNOWN = "Object contains unknown field `"


class BodyReader:
    """Reads bodies of requests into their types."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_bytes = max_body_bytes
        self._pool: ProcessPoolExecutor | None = None

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """The body as `kind`; raises `ApiError` for whatever is wrong with it."""
        check_content_type(request.scope)
        encoding = content_encoding(request.scope)
        raw = await self._receive(request.receive, header(request.scope, b"content-length"))
        if encoding is not None:
            # In a thread: zlib lets go of Python's lock.
            plain = await asyncio.to_thread(decompress, raw, encoding, self._max_bytes)
            if plain is None:
                raise self._too_long("more once decompressed")
            raw = plain
        if len(raw) <= INLINE_BYTES:
            return decode(kind, raw)
        return await self._decode_elsewhere(kind, raw)

    async def _receive(self, receive: Receive, declared: str | None) -> bytes:
        chunks: list[bytes] = []
        size = int(declared) if declared and declared.isdigit() else 0
        too_long = size > self._max_bytes
        if size > DRAINED_BYTES:
            raise self._too_long(str(size))
        size = 0
        more = True
        while more and size <= DRAINED_BYTES:
            message = await _next_piece(receive)
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

    async def _decode_elsewhere(self, kind: type[Body], raw: bytes) -> Body:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                NUM_PROCESSES, mp_context=context, initializer=_prepare_process
            )
        loop = asyncio.get_running_loop()
        try:
            body = await loop.run_in_executor(self._pool, _decode_large, kind, raw)
        except BrokenProcessPool:
            self._pool = None
            raise
        if isinstance(body, ApiError):
            raise body
        return body

    def close(self) -> None:
        """End the other processes, if there are any."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


async def _next_piece(receive: Receive) -> Any:
    try:
        async with asyncio.timeout(SILENCE_S):
            return await receive()
    except TimeoutError:
        raise ApiError(
            408,
            f"nothing of the body came for {SILENCE_S:g} s",
            headers={"connection": "close"},
        ) from None


# -- in another process -----------------------------------------------------------------------


def _prepare_process() -> None:
    """Follow the parent, and collect garbage by hand."""
    follow_parent()
    gc.freeze()
    gc.disable()  # collections would look through millions of parsed values, again and again


def _decode_large(kind: type[Body], raw: bytes) -> Body | ApiError:
    """The body, or what is wrong with it; what either took is given back to the system."""
    try:
        return _decode_known(kind, raw)
    except ApiError as error:
        refusal = ApiError(error.status, error.message, param=error.param, code=error.code)
    finally:
        # An error holds, by its traceback, all that was parsed, in a circle.
        gc.collect()
        _trim_memory()
    return refusal


def _decode_known(kind: type[Body], raw: bytes) -> Body:
    """`decode`, but of fields that are unknown the first ends it, before anything is built."""
    try:
        msgspec.json.decode(raw, type=_fields_of(kind))
    except msgspec.ValidationError as error:
        _, found, name = str(error).partition(_UNKNOWN)
        if found:
            raise unknown_fields(kind, [name.removesuffix("`")]) from None
    except (msgspec.DecodeError, RecursionError):
        pass  # told by `decode`
    return decode(kind, raw)


@cache
def _fields_of(kind: type[BodyModel]) -> type[msgspec.Struct]:
    """A struct with the body's fields, of which no value is looked into."""
    fields = [(name, msgspec.Raw, msgspec.Raw()) for name in kind.model_fields]
    return msgspec.defstruct("Fields", fields, forbid_unknown_fields=True)


def _trim_memory() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
