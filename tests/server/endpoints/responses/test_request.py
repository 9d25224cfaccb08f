"""Fields of Responses as those of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from server.endpoints.chat.schema import ChatRequest
from server.endpoints.responses.request import ChatOfResponse
from server.endpoints.responses.schema import ResponsesRequest
from server.errors import bad_request

TOOL = {
    "type": "function",
    "name": "f",
    "description": "Does.",
    "parameters": {"type": "object"},
    "strict": True,
}


def wanted(**fields: Any) -> ChatOfResponse:
    return ChatOfResponse(ResponsesRequest.model_validate({"input": "hello", **fields}))


def chat(**fields: Any) -> ChatRequest:
    return wanted(**fields).body


def test_tools() -> None:
    [tool] = chat(tools=[TOOL]).tools or []
    function = {name: value for name, value in TOOL.items() if name != "type"}
    assert tool.model_dump() == {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        *((word, word) for word in (None, "auto", "none", "required")),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_choices(choice: Any, meant: Any) -> None:
    assert chat(tools=[TOOL], tool_choice=choice).model_dump()["tool_choice"] == meant


def test_what_means_the_same() -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "seed": 5,
        "stream": True,
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"mood": "gay"},
        "request_id": "r",
    }
    body = chat(**fields, reasoning={"effort": "low"})
    assert {name: getattr(body, name) for name in fields} == fields
    assert body.reasoning_effort == "low"


@pytest.mark.parametrize(
    ("fields", "logprobs", "top_logprobs"),
    [
        ({}, False, None),
        ({"top_logprobs": 0}, False, None),
        ({"top_logprobs": 3}, True, 3),
        ({"include": ["message.output_text.logprobs"]}, True, 0),
        ({"include": ["reasoning.encrypted_content"]}, False, None),
    ],
)
def test_logprobs(fields: dict[str, Any], logprobs: bool, top_logprobs: int | None) -> None:
    body = chat(**fields)
    assert (body.logprobs, body.top_logprobs) == (logprobs, top_logprobs)


def test_formats() -> None:
    assert chat(text={"format": {"type": "text"}}).response_format is None
    made = chat(text={"format": {"type": "json_object"}}).response_format
    assert made is not None
    assert (made.type, made.json_schema) == ("json_object", None)
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    made = chat(text={"format": schema}).response_format
    assert made is not None
    assert made.json_schema is not None
    assert made.json_schema.schema_ == {"type": "object"}


@pytest.mark.parametrize(
    ("chats", "told"),
    [
        ("max_tokens", "max_output_tokens"),
        ("tools[3].function.parameters", "tools[3].parameters"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("response_format.json_schema.schema.type", "text.format.schema.type"),
        ("messages[1].content", "input[0].content"),
    ],
)
def test_errors_are_told_in_its_words(chats: str, told: str) -> None:
    error = wanted(instructions="x").told(bad_request(chats, f"{chats} is bad"))
    assert (error.param, error.message) == (told, f"{told} is bad")
