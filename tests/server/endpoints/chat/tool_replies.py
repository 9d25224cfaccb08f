"""A template of a model that thinks and calls tools, and replies that it makes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

SLOW_FIXTURES = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TEMPLATE = (
    "{% for t in tools or [] %}[tool]{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    '{# <tool_call>{"name": ..., "arguments": ...}</tool_call> <think></think> #}'
)

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"


def tool(name: str = "look", **parameters: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def call(name: str = "look", **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


TOOLS: dict[str, Any] = {"tools": [tool(at={"type": "string"}), tool("stop")]}
THOUGHTS = "<think>\nThey want it.\n</think>\n\n"
REPLY = f"{THOUGHTS}I look.\n{call(at='grüße </tool_call>')}\n{call('stop')}"


def joined(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message that the deltas of one choice make, each checked for its shape."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            assert delta or choice["finish_reason"]  # none is empty but the last
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name, "")
            parts = delta.get("tool_calls", [])
            assert len({part["index"] for part in parts}) == len(parts)
            for part in parts:
                _join_call(message["tool_calls"], part)
    return message


def _join_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    if part["index"] == len(calls):
        assert set(part) == {"index", "id", "type", "function"}
        assert set(part["function"]) == {"name", "arguments"}
        assert part["function"]["arguments"] == ""
        calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
    else:
        assert part["index"] == len(calls) - 1
        assert set(part) == {"index", "function"}
        assert set(part["function"]) == {"arguments"}
        assert part["function"]["arguments"]
        calls[-1]["function"]["arguments"] += part["function"]["arguments"]


PARTS = st.sampled_from(
    [
        *(THOUGHTS, "<think>", "</think>", call(at="ü🙂"), call("stop"), "<tool_call>"),
        *("</tool_call>", " ", "\n", "words", "ü🙂", '{"name": "x"}', "<tool", "{"),
    ]
)


def choice(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}
