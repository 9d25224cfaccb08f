"""Messages sent over the fake engine."""

from __future__ import annotations

from typing import Any

import httpx
from anthropic.types import Message

from tests.server.conftest import MODEL, Site

HELLO = [{"role": "user", "content": "hello"}]

LOOK = {
    "name": "look",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}},
}

TOOLS: dict[str, Any] = {"tools": [LOOK, {"name": "stop", "input_schema": {"type": "object"}}]}


def error_of(reply: httpx.Response) -> dict[str, Any]:
    """The error object, checked for Anthropic's shape."""
    body = reply.json()
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    assert {"type", "message"} <= set(body["error"]) <= {"type", "message", "details"}
    assert set(body["error"].get("details", ["error_code"])) == {"error_code"}
    error: dict[str, Any] = body["error"]
    return error


async def send(site: Site, /, status: int = 200, **body: Any) -> dict[str, Any]:
    """The message, or the error object of a request that must fail."""
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 200, **body}
    reply = await site.client.post("/v1/messages", json=body)
    assert reply.status_code == status, reply.text
    if status != 200:
        return error_of(reply)
    parsed: dict[str, Any] = reply.json()
    assert Message.model_validate(parsed, strict=True).role == "assistant"
    return parsed
