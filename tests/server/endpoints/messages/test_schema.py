"""Bodies of Messages: blocks by type, tools, choices, thinking."""

from __future__ import annotations

from typing import Any

import pytest

from server.endpoints.messages.schema import CountTokensRequest, MessagesRequest
from server.errors import ApiError
from server.schema.base import validate

HELLO = [{"role": "user", "content": "hello"}]


def body(**fields: Any) -> MessagesRequest:
    return validate(MessagesRequest, {"model": "m", "messages": HELLO, "max_tokens": 3, **fields})


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        body(**fields)
    return caught.value


def test_texts_are_blocks() -> None:
    made = body(system="brief")
    assert [block.text for block in made.messages[0].content] == ["hello"]
    assert [block.text for block in made.system or ()] == ["brief"]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "text"}, "of type text needs text"),
        ({"type": "tool_use", "id": "t", "name": "f"}, "of type tool_use needs input"),
        ({"type": "document", "source": {}}, 'has the type "document", which is not served'),
        ({"text": "a"}, "has the type null"),
    ],
)
def test_blocks(block: dict[str, Any], words: str) -> None:
    error = refusal(messages=[{"role": "user", "content": [block]}])
    assert words in error.message
    assert error.param == "messages[0].content[0]"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"model": None}, "model"),
        ({"thinking": {"type": "between_tools"}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        (
            {"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]},
            "tools[0].defer_loading",
        ),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"n": 2}, "n"),
    ],
)
def test_refused(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_tokens_are_counted_of_the_prompt_s_fields_alone() -> None:
    fields = {"model": "m", "messages": HELLO}
    assert validate(CountTokensRequest, fields).model == "m"
    with pytest.raises(ApiError, match="unknown field 'max_tokens'"):
        validate(CountTokensRequest, fields | {"max_tokens": 3})
