"""Dialogues that the demo model leads by itself, in its own template and with its own drafts.

Nothing is forced here: the model thinks, calls tools and answers because it learned to.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from demo.chat import MARKERS
from demo.dialogues import Dialogue, dialogues
from tests.serving.chats import joined
from tests.serving.process import Server, serve, wait_until_idle

Json = dict[str, Any]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SPECULATION = '{"method": "eagle", "num_speculative_tokens": 3, "draft_sample_method": "gumbel"}'
MAX_TOKENS = 120
SEED = 5
DIALOGUES = list(itertools.islice(dialogues(SEED, held_out=True), 40))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve("--speculative-config", SPECULATION) as server:
        yield server


def chat(index: int, dialogue: Dialogue, **fields: Any) -> Json:
    """The chat that asks a dialogue's question."""
    asked: Json = {"messages": dialogue.history, "max_tokens": MAX_TOKENS, "seed": index}
    asked["temperature"] = (0.0, 0.5, 1.0)[index % 3]
    return asked | ({"tools": dialogue.tools} if dialogue.tools else {}) | fields


def send(server: Server, path: str, body: Json) -> httpx.Response:
    reply = httpx.post(server.url + path, json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    return reply


def said(message: Json) -> tuple[str, str, list[tuple[str, Json]]]:
    """Thoughts, content, and calls by name and arguments."""
    calls = [each["function"] for each in message.get("tool_calls") or []]
    return (
        message.get("reasoning_content") or "",
        message["content"] or "",
        [(call["name"], json.loads(call["arguments"])) for call in calls],
    )


def test_streams_join_to_the_plain_replies(server: Server) -> None:
    num_calls = num_right = 0
    for index, dialogue in enumerate(DIALOGUES):
        body = chat(index, dialogue)
        [plain] = send(server, "/v1/chat/completions", body).json()["choices"]
        streamed = send(server, "/v1/chat/completions", body | {"stream": True})
        [choice] = joined(streamed.text)["choices"]
        assert said(choice["message"]) == said(plain["message"])
        assert choice["finish_reason"] == plain["finish_reason"]
        thoughts, content, calls = said(plain["message"])
        assert not any(marker in thoughts + content for marker in MARKERS)
        assert (plain["finish_reason"] == "tool_calls") == bool(calls)
        right = [
            (call["function"]["name"], call["function"]["arguments"])
            for call in dialogue.turns[0].get("tool_calls", [])
        ]
        num_right += calls == right
        num_calls += len(calls)
    assert num_calls >= len(DIALOGUES) // 2
    assert num_right >= 0.9 * len(DIALOGUES)


def test_three_routes_draw_the_same_calls(server: Server) -> None:
    """Of a seed; the messages are a user's alone, which all three write in one way."""
    lone = [(i, each) for i, each in enumerate(DIALOGUES) if len(each.history) == 1][:12]
    assert any(dialogue.calls for _, dialogue in lone)
    for index, dialogue in lone:
        [choice] = send(server, "/v1/chat/completions", chat(index, dialogue)).json()["choices"]
        wanted = said(choice["message"])
        functions = [tool["function"] for tool in dialogue.tools]
        shared = {"model": "tailrace-demo", "seed": index}
        shared["temperature"] = chat(index, dialogue)["temperature"]
        response = send(
            server,
            "/v1/responses",
            shared
            | {"input": dialogue.history, "max_output_tokens": MAX_TOKENS}
            | {"tools": [{"type": "function", "strict": False} | each for each in functions]},
        ).json()
        assert _of_response(response) == wanted
        message = send(
            server,
            "/v1/messages",
            shared
            | {"messages": dialogue.history, "max_tokens": MAX_TOKENS}
            | {
                "tools": [
                    {"name": each["name"], "input_schema": each["parameters"]} for each in functions
                ]
            },
        ).json()
        assert _of_message(message) == wanted


def _of_response(response: Json) -> tuple[str, str, list[tuple[str, Json]]]:
    by_type: dict[str, list[Json]] = {"reasoning": [], "message": [], "function_call": []}
    for item in response["output"]:
        by_type[item["type"]].append(item)
    return (
        "".join(part["text"] for item in by_type["reasoning"] for part in item["content"]),
        "".join(part["text"] for item in by_type["message"] for part in item["content"]),
        [(item["name"], json.loads(item["arguments"])) for item in by_type["function_call"]],
    )


def _of_message(message: Json) -> tuple[str, str, list[tuple[str, Json]]]:
    blocks = message["content"]
    return (
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_streams_that_clients_leave_anywhere_hold_nothing(server: Server, path: str) -> None:
    """Rows and blocks are free again, and what others get is the same."""
    question = {"role": "user", "content": "Multiply 25 by 17, then add 2."}
    body: Json = {"stream": True, "temperature": 0, "model": "tailrace-demo"}
    body |= {"input": [question]} if path == "/v1/responses" else {"messages": [question]}
    body |= {"max_tokens": MAX_TOKENS} if path == "/v1/messages" else {}
    whole = len(send(server, path, body).content)
    draw, content = random.Random(path), json.dumps(body).encode()
    address = server.url.removeprefix("http://")
    head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    host, port = address.split(":")
    for _ in range(24):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(head.encode() + content)
            left, first = draw.randrange(whole), b""
            while left > 0 and (got := connection.recv(left)):
                left, first = left - len(got), first or got
            assert not first or first.startswith(b"HTTP/1.1 200"[: len(first)]), first
    wait_until_idle(server)
    assert len(send(server, path, body).content) == whole
