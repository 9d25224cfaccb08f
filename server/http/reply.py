"""Replies of any size: a long one is written in parts, so that none holds the event loop."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PART_BYTES = 1 << 20
"""A longer body is written in parts of so many bytes."""


def json_reply(raw: bytes) -> Response:
    """A reply of JSON text, whatever its length."""
    kind = Response if len(raw) <= PART_BYTES else _LongReply
    return kind(raw, media_type="application/json")


class _LongReply(Response):
    """A body that is written part by part; its length is known, as that of a short one is."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, headers = self.status_code, self.raw_headers
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send_in_parts(send, bytes(self.body), more=False)


async def send_in_parts(send: Send, raw: bytes, *, more: bool) -> None:
    """Send a piece of a body, nothing where it is empty; `more` says whether others follow."""
    for start in range(0, len(raw), PART_BYTES):
        part, follows = raw[start : start + PART_BYTES], start + PART_BYTES < len(raw)
        message = {"type": "http.response.body", "body": part, "more_body": more or follows}
        await send(message)
        if follows:
            await asyncio.sleep(0)  # `send` waits only where the client reads slowly
