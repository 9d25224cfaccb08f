"""Fields of Messages as those of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from server.endpoints.chat.schema import ChatRequest
from server.endpoints.messages.request import ChatOfMessages
from server.endpoints.messages.schema import CountTokensRequest, MessagesRequest
from server.errors import ApiError, bad_request

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "f", "description": "Does.", "input_schema": {"type": "object"}, "strict": True}


def chat(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": HELLO, "max_tokens": 3, **fields}
    return ChatOfMessages(MessagesRequest.model_validate(body)).body


def test_tools() -> None:
    [tool] = chat(tools=[TOOL]).tools or []
    assert tool.model_dump() == {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Does.",
            "parameters": {"type": "object"},
            "strict": True,
        },
    }


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, None),
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_choices(choice: Any, wanted: Any) -> None:
    body = chat(tools=[TOOL], tool_choice=choice)
    assert body.model_dump()["tool_choice"] == wanted
    assert body.parallel_tool_calls is None


def test_one_use_at_most() -> None:
    for kind in ("auto", "any"):
        choice = {"type": kind, "disable_parallel_tool_use": True}
        assert chat(tools=[TOOL], tool_choice=choice).parallel_tool_calls is False


def test_sampling() -> None:
    fields = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "seed": 5, "stream": True}
    body = chat(**fields, stop_sequences=["x"])
    assert {name: getattr(body, name) for name in fields} == fields
    assert body.stop == ["x"]


def test_own_variables_of_the_template_come_last() -> None:
    variables = {"enable_thinking": True, "mood": "gay"}
    body = chat(thinking={"type": "disabled"}, chat_template_kwargs=variables)
    assert body.chat_template_kwargs == {"thinking": False, **variables}


def test_counting_asks_for_the_same_prompt() -> None:
    fields = {"model": "m", "messages": HELLO, "system": "x", "tools": [TOOL]}
    counted = ChatOfMessages(CountTokensRequest.model_validate(fields)).body
    made = chat(**fields)
    for name in ("messages", "tools", "tool_choice", "chat_template_kwargs"):
        assert getattr(counted, name) == getattr(made, name)


@pytest.mark.parametrize(
    ("chats", "told"),
    [
        ("tools[3].function.parameters", "tools[3].input_schema"),
        ("tools[3].function.strict", "tools[3].strict"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("response_format.json_schema.schema.type", "output_config.format.schema.type"),
        ("messages[1].content", "messages[0].content"),
    ],
)
def test_errors_are_told_in_its_words(chats: str, told: str) -> None:
    body = {"model": "m", "messages": HELLO, "max_tokens": 3, "system": "x"}
    wanted = ChatOfMessages(MessagesRequest.model_validate(body))
    error = wanted.told(bad_request(chats, f"{chats} is bad"))
    assert isinstance(error, ApiError)
    assert (error.param, error.message) == (told, f"{told} is bad")
