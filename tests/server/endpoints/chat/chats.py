"""Chats over the fake engine, plain and as streams, and the template that they are rendered by."""

from __future__ import annotations

from typing import Any

from tests.server.conftest import MODEL, Site, chunks_of, error_of

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)

HELLO = [{"role": "user", "content": "hello"}]


async def chat(site: Site, /, status: int = 200, **body: Any) -> dict[str, Any]:
    """The reply to a chat, or its error object."""
    body = {"model": MODEL, "messages": HELLO, **body}
    reply = await site.client.post("/v1/chat/completions", json=body)
    assert reply.status_code == status, reply.text
    if status != 200:
        return error_of(reply)
    parsed: dict[str, Any] = reply.json()
    return parsed


async def stream(site: Site, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream."""
    body = {"model": MODEL, "messages": HELLO, "stream": True, **body}
    reply = await site.client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return chunks_of(reply.text)


def prompt_of(site: Site) -> str:
    """The prompt of the last request the engine got; the fake's ids are bytes."""
    return bytes(site.engine.requests[-1].prompt_token_ids.astype("uint8")).decode()
