"""Responses asked of the fake engine."""

from __future__ import annotations

from typing import Any

from openai.types.responses import Response

from tests.server.conftest import MODEL, Site, error_of

LOOK = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
}


TOOLS: dict[str, Any] = {"tools": [LOOK, {"type": "function", "name": "stop"}]}


async def respond(site: Site, /, status: int = 200, **body: Any) -> dict[str, Any]:
    """The response, or the error object of a request that must fail."""
    body = {"model": MODEL, "input": "hello", **body}
    reply = await site.client.post("/v1/responses", json=body)
    assert reply.status_code == status, reply.text
    if status != 200:
        return error_of(reply)
    parsed: dict[str, Any] = reply.json()
    assert Response.model_validate(parsed).object == "response"
    return parsed
