"""Reading a request's body: bounded in size, and never long on the event loop.

Parsing JSON holds Python's lock from end to end, so a thread would not help: a body above
`INLINE_BYTES`, or of many objects, is parsed and checked in another process
(`server.http.large_bodies`), from which ids come back as arrays. Bodies above it wait until there
is memory for them, where their clients wait to send them, and again until there is for what they
are parsed into.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope

from server.errors import ApiError, shutting_down
from server.http.account import account_of, header
from server.http.body_memory import PARSED_BYTES, BodyMemory, parsed_bytes
from server.http.content import MAX_RATIO, check_content_type, content_encoding, decompress
from server.http.disconnect import ClientGoneError
from server.http.large_bodies import PARSE_S, decode_large
from server.schema.base import Body
from server.schema.foreign import decode_adopted
from server.work.processes import CallEndedError, ProcessPool

_PEEKED = "tailrace.body"
INLINE_BYTES = 512 << 10
INLINE_OBJECTS = 2048
"""Objects that are parsed and checked on the event loop: some 10 ms at most."""
DRAINED_BYTES = 256 << 20
"""A body over the limit is read to its end, so that the client sees the answer; not one over this,
which is refused before it is read."""
SILENCE_S = 75.0
"""How long a client may take from one piece of its body to the next."""
LEAST_RATE, GRACE_S = 128 << 10, 10.0
"""Bytes a second, after so many seconds, at which a large body must come: others wait for the
memory that is kept for it."""


class BodyReader:
    """Reads bodies of requests into their types.

    Args:
        pool: where large ones are parsed.
        accepts_unknown: fields that nobody knows have no effect; else they are refused.
    """

    def __init__(
        self, max_body_bytes: int, pool: ProcessPool, *, accepts_unknown: bool = False
    ) -> None:
        self._accepts_unknown = accepts_unknown
        self._max_bytes = max_body_bytes
        self._memory, self._parsed_memory = BodyMemory(), BodyMemory(PARSED_BYTES)
        self._pool = pool
        self._waits: set[asyncio.Timeout] = set()
        self._gives_up = False

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """The body as `kind`; raises `ApiError` for whatever is wrong with it.

        The memory of a large one is kept until the request's account ends or gives it back.
        """
        raw = request.scope.pop(_PEEKED, None)
        if raw is None:
            raw = await self._raw(request)
        if len(raw) <= INLINE_BYTES and raw.count(b"{") <= INLINE_OBJECTS:
            body, without_effect = decode_adopted(kind, bytes(raw), self._accepts_unknown)
        else:
            body, without_effect = await self._decode_elsewhere(kind, raw, request.scope)
        account_of(request.scope).without_effect = without_effect
        return body

    async def peek(self, request: Request) -> bytearray:
        """The bytes of a body that is then read as one of several kinds; raises as `read`."""
        raw = request.scope[_PEEKED] = await self._raw(request)
        return raw

    async def _raw(self, request: Request) -> bytearray:
        """The body's bytes, no longer compressed."""
        check_content_type(request.scope)
        encoding = content_encoding(request.scope)
        raw = await self._receive(request.scope, request.receive, encoding is not None)
        if encoding is not None:
            # In a thread: zlib lets go of Python's lock.
            plain = await asyncio.to_thread(decompress, raw, encoding, self._max_bytes)
            if plain is None:
                raise self._too_long("more once decompressed")
            raw = plain
        return raw

    async def reserve(self, scope: Scope, num_bytes: int) -> None:
        """Wait for the memory of something large that a request is about to read beside its body.

        Raises:
            ApiError: 429, there is none now, and the request has some already: those who hold
                memory do not wait for each other's.
        """
        held = account_of(scope).body_memory
        held.append(await self._memory.lease(num_bytes, may_wait=not held))

    async def read_optional(self, request: Request, kind: type[Body]) -> Body:
        """The same where the body may be left out: all its fields then have their defaults."""
        headers = request.headers
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return kind()
        return await self.read(request, kind)

    async def _receive(self, scope: Scope, receive: Receive, is_compressed: bool) -> bytearray:
        declared = header(scope, b"content-length")
        size = int(declared) if declared and declared.isdigit() else 0
        if size > DRAINED_BYTES:
            raise self._too_long(str(size))
        body = bytearray()  # grows piece by piece: joining them would hold up the event loop
        come, more, deadline = 0, True, None
        too_long = size > self._max_bytes
        while more and come <= DRAINED_BYTES:
            message = await self._next_piece(receive, deadline)
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            come += len(chunk)
            too_long = too_long or come > self._max_bytes
            if too_long:
                body.clear()
                continue
            body += chunk
            if deadline is None and (wanted := self._memory_for(come, size, is_compressed)):
                account_of(scope).body_memory.append(await self._memory.lease(wanted))
                deadline = time.monotonic() + GRACE_S + (size or self._max_bytes) / LEAST_RATE
        if too_long:
            raise self._too_long(declared or str(come))
        return body

    def _memory_for(self, come: int, declared: int, is_compressed: bool) -> int:
        """Bytes that a body may take, of which some have come; 0 while it seems a small one."""
        known = max(come, declared)
        if not declared and (is_compressed or come > INLINE_BYTES):
            known = self._max_bytes
        if is_compressed:
            known += min(known * MAX_RATIO, self._max_bytes)
        return known if known > INLINE_BYTES else 0

    def _too_long(self, size: str) -> ApiError:
        return ApiError(
            413,
            f"the body must be at most {self._max_bytes} bytes (--max-body-bytes), got {size}",
            code="body_too_large",
            headers={"connection": "close"},
        )

    async def _decode_elsewhere(
        self, kind: type[Body], raw: bytearray, scope: Scope
    ) -> tuple[Body, list[str]]:
        lease = await self._parsed_memory.lease(parsed_bytes(raw))
        account_of(scope).body_memory.append(lease)
        try:
            return await self._pool.run(PARSE_S, decode_large, kind, raw, self._accepts_unknown)
        except (TimeoutError, MemoryError):
            raise ApiError(400, "the body takes too much time or memory to read") from None
        except CallEndedError:
            raise ApiError(500, "the process that read the body ended") from None

    async def _next_piece(self, receive: Receive, deadline: float | None) -> Any:
        """The next piece of a body, which has to come in time; a large one in all by `deadline`."""
        left_s = SILENCE_S if deadline is None else deadline - time.monotonic()
        wait = asyncio.timeout(0.0 if self._gives_up else min(SILENCE_S, left_s))
        self._waits.add(wait)
        try:
            async with wait:
                return await receive()
        except TimeoutError:
            if self._gives_up:
                raise shutting_down() from None
            words = f"nothing of the body came for {SILENCE_S:g} s"
            if left_s < SILENCE_S:
                words = f"a large body must come at {LEAST_RATE >> 10} KiB a second"
            raise ApiError(408, words, headers={"connection": "close"}) from None
        finally:
            self._waits.discard(wait)

    def give_up(self) -> None:
        """Wait for bodies no longer: the server ends."""
        self._gives_up = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(0.0)
