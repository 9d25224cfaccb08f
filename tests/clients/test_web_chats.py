"""Requests of chat pages that cannot be installed here, replayed as they send them over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.clients.programs_run import MODEL
from tests.serving.process import Server, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "def fibonacci(n):"},
    {"role": "assistant", "content": "It gives the n-th number of the sequence."},
    {"role": "user", "content": [{"type": "text", "text": "And what does it take?"}]},
]
OPEN_WEBUI: dict[str, dict[str, Any]] = {
    "a chat": {
        "stream": True,
        "model": MODEL,
        "messages": HISTORY,
        "stream_options": {"include_usage": True},
        "max_tokens": 40,
    },
    "a chat with the settings of its sliders": {
        "stream": True,
        "model": MODEL,
        "messages": HISTORY,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "seed": 42,
        "stop": ["\n\nUser:"],
        "frequency_penalty": 0.1,
        "repetition_penalty": 1.1,
        "logit_bias": {"15": -1},
        "max_tokens": 40,
        "keep_alive": "5m",
        "chat_id": "local:1",
    },
    "a title": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "### Task:\nWrite a title of this chat."}],
        "stream": False,
        "max_completion_tokens": 40,
    },
}
LIBRECHAT: dict[str, dict[str, Any]] = {
    "a chat": {
        "model": MODEL,
        "user": "66f0c1",
        "stream": True,
        "temperature": 1,
        "top_p": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "stream_options": {"include_usage": True},
        "messages": HISTORY,
        "max_tokens": 40,
    },
    "a title by a function": {
        "model": MODEL,
        "user": "66f0c1",
        "temperature": 0.2,
        "n": 1,
        "stream": False,
        "messages": HISTORY[1:2],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "output_title",
                    "description": "The title.",
                    "parameters": {
                        "type": "object",
                        "properties": {"title": {"type": "string", "maxLength": 40}},
                        "required": ["title"],
                        "additionalProperties": False,
                        "$schema": "http://json-schema.org/draft-07/schema#",
                    },
                },
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "output_title"}},
    },
}
HEADERS = {
    "Authorization": "Bearer sk-none",
    "X-OpenWebUI-User-Name": "Ada%20L",
    "X-OpenWebUI-User-Id": "0b1f",
    "X-OpenWebUI-Chat-Id": "local:1",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve("--api-key", "sk-none") as server:
        yield server


def said(server: Server, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The message of a reply, put together as these pages do, and its usage."""
    url = f"{server.url}/v1/chat/completions"
    reply = httpx.post(url, json=body, headers=HEADERS, timeout=120)
    assert reply.status_code == 200, reply.text
    if not body["stream"]:
        assert reply.headers["content-type"].startswith("application/json")
        found = reply.json()
        return found["choices"][0]["message"], found["usage"]
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in reply.text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(
        choice["delta"].get("content") or choice["delta"].get("reasoning_content") or ""
        for chunk in chunks
        for choice in chunk["choices"]
    )
    return {"content": text}, chunks[-1].get("usage") or {}


@pytest.mark.parametrize("name", OPEN_WEBUI)
def test_open_webui(server: Server, name: str) -> None:
    body = OPEN_WEBUI[name]
    message, usage = said(server, body)
    assert message.get("content") or message.get("reasoning_content")
    if "stream_options" in body:
        assert usage["completion_tokens"] > 0


def test_open_webui_lists_models(server: Server) -> None:
    listed = httpx.get(f"{server.url}/v1/models", headers=HEADERS).json()
    assert [model["id"] for model in listed["data"]] == [MODEL]
    assert httpx.get(f"{server.url}/v1/models").status_code == 401


@pytest.mark.parametrize("name", LIBRECHAT)
def test_librechat(server: Server, name: str) -> None:
    body = LIBRECHAT[name]
    message, usage = said(server, body)
    assert usage["completion_tokens"] > 0
    if "tools" in body:
        (call,) = message["tool_calls"]
        assert set(json.loads(call["function"]["arguments"])) == {"title"}
    else:
        assert message["content"]
