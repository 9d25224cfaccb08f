"""Responses asked of the fake engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.server.conftest import MODEL, Site, error_of

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

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


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, each valid by its own type and named by it."""
    assert reply.status_code == 200, reply.text
    frames = reply.text.split("\n\n")
    assert frames.pop() == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert EVENTS.validate_python(event).type == event["type"]
        events.append(event)
    return events
