"""Requests of a coding agent that no package index has, replayed as it sends them over HTTP.

Codex streams Responses that are not stored: every turn sends its instructions, its environment as a
user's message, and all items so far, calls of a custom tool by a grammar among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types.responses import Response

from tests.clients.programs_run import MODEL
from tests.server.structured.patches import GOOD, PATCH
from tests.serving.process import Server, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHELL: dict[str, Any] = {
    "type": "function",
    "name": "shell",
    "description": "Runs a shell command and returns its output.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}},
            "workdir": {"type": "string"},
            "timeout_ms": {"type": "number"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
APPLY_PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Use the `apply_patch` tool to edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH},
}


def message(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {
        "type": "message",
        "role": role,
        "content": [{"type": kind, "text": text} for text in texts],
    }


BEGINNING: list[dict[str, Any]] = [
    message("developer", "Filesystem sandboxing is on."),
    message("user", "<environment_context>\n  <cwd>/repo</cwd>\n</environment_context>"),
    message("user", "Rename x."),
]
HISTORY: list[dict[str, Any]] = [
    {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAAAB"},
    {
        "type": "local_shell_call",
        "call_id": "call_0",
        "status": "completed",
        "action": {"type": "exec", "command": ["ls"], "timeout_ms": 1000, "env": {}},
    },
    {"type": "function_call_output", "call_id": "call_0", "output": "a.py"},
    {"type": "function_call", "name": "shell", "arguments": '{"command":["cat","a.py"]}'}
    | {"call_id": "call_1", "id": "fc_1", "status": "completed"},
    {"type": "function_call_output", "call_id": "call_1", "output": "x = 1"},
    {"type": "custom_tool_call", "name": "apply_patch", "input": GOOD, "call_id": "call_2"}
    | {"status": "completed"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done!"},
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
    message("assistant", "It is renamed."),
    message("user", "And y."),
]


def body(items: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "instructions": "You are a coding agent.",
        "input": items,
        "tools": [SHELL, APPLY_PATCH, {"type": "web_search", "external_web_access": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-session",
        "text": {"verbosity": "medium"},
        "max_output_tokens": 300,
        "temperature": 0,
    } | changes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve() as server:
        yield server


def last(server: Server, sent: dict[str, Any]) -> Response:
    """The response of a stream's last event, whose items all came one by one."""
    headers = {"originator": "codex_cli_rs", "session_id": "0199", "openai-beta": "responses=v1"}
    reply = httpx.post(f"{server.url}/v1/responses", json=sent, headers=headers, timeout=300)
    assert reply.status_code == 200, reply.text
    lines = [line for line in reply.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert events[0]["type"] == "response.created"
    done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    ended = events[-1]
    assert ended["type"] in ("response.completed", "response.incomplete"), ended
    assert [item["id"] for item in ended["response"]["output"]] == [item["id"] for item in done]
    return Response.model_validate(ended["response"])


@pytest.mark.parametrize("items", [BEGINNING, BEGINNING + HISTORY], ids=["first turn", "later"])
def test_turns_are_answered(server: Server, items: list[dict[str, Any]]) -> None:
    response = last(server, body(items))
    assert response.output
    assert response.usage is not None
    assert response.usage.output_tokens > 0


def test_a_later_turn_finds_the_one_before_in_the_cache(server: Server) -> None:
    first = last(server, body(BEGINNING, max_output_tokens=1))
    again = last(server, body(BEGINNING + HISTORY, max_output_tokens=1))
    assert first.usage is not None
    assert again.usage is not None
    cached = again.usage.input_tokens_details.cached_tokens
    assert cached >= first.usage.input_tokens // 2


def test_a_patch_keeps_to_the_grammar(server: Server) -> None:
    choice = {"type": "custom", "name": "apply_patch"}
    response = last(server, body(BEGINNING, tool_choice=choice))
    (call,) = [item for item in response.output if item.type == "custom_tool_call"]
    assert call.name == "apply_patch"
    lines = call.input.splitlines()
    assert lines[0] == "*** Begin Patch"
    assert lines[1].startswith(("*** Add File: ", "*** Delete File: ", "*** Update File: "))
    if response.status == "completed":
        assert lines[-1] == "*** End Patch"
