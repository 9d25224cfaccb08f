"""Items of an input as the messages of a conversation, in the shapes that agents send."""

from __future__ import annotations

from typing import Any

import pytest

from server.endpoints.responses.items import input_messages
from server.endpoints.responses.schema import ResponsesRequest
from server.endpoints.responses.thoughts import wrapped
from server.errors import ApiError


def messages(*items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    """The messages, of calls their ids."""
    body = ResponsesRequest.model_validate({"input": list(items)})
    found = []
    for message in input_messages(instructions, body.input):
        calls = {"tool_calls": [call["id"] for call in message.get("tool_calls", ())]}
        found.append(message | calls if calls["tool_calls"] else message)
    return found


USER = {"role": "user", "content": "hello"}
ASKED = {"role": "user", "content": "hello"}


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments}


def output(call_id: str, text: Any = "x") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def said(*texts: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    fixed = {"type": "message", "id": "msg_1", "status": "completed"}
    return {**fixed, "role": "assistant", "content": content}


def thought(**fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], **fields}


CONTENT = [{"type": "reasoning_text", "text": "Hm."}]


def test_roles_and_instructions() -> None:
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "brief"}]}
    assert messages(developer, USER, instructions="You help.") == [
        {"role": "system", "content": "You help."},
        {"role": "developer", "content": "brief"},
        ASKED,
    ]


def test_one_turn_of_the_model_is_one_message() -> None:
    items = (USER, thought(content=CONTENT), said("a", "b"), call("c1"), call("c2"))
    assert messages(*items, output("c1"), output("c2"), USER) == [
        ASKED,
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "a\nb",
            "tool_calls": ["c1", "c2"],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
        {"role": "tool", "tool_call_id": "c2", "content": "x"},
        ASKED,
    ]


def test_calls_after_an_output_are_another_turn() -> None:
    assert [m["role"] for m in messages(USER, call("a"), output("a"), call("b"), output("b"))] == [
        *("user", "assistant", "tool", "assistant", "tool")
    ]


def test_outputs_follow_their_calls_wherever_they_are() -> None:
    late = messages(USER, call("a"), call("b"), output("b"), USER, output("a"))
    assert [m.get("tool_call_id", m["role"]) for m in late] == [
        *("user", "assistant", "b", "a", "user")
    ]


def test_outputs_as_parts() -> None:
    parts = [{"type": "input_text", "text": "1"}, {"type": "input_text", "text": "2"}]
    assert messages(call("a"), output("a", parts))[1]["content"] == "1\n2"


@pytest.mark.parametrize(
    ("fields", "thoughts"),
    [
        ({"content": CONTENT}, "Hm."),
        ({"summary": [{"type": "summary_text", "text": "So."}]}, "So."),
        ({"content": CONTENT, "summary": [{"type": "summary_text", "text": "So."}]}, "Hm."),
        ({"encrypted_content": wrapped("Ah.")}, "Ah."),
        ({"encrypted_content": wrapped("Ah."), "content": CONTENT}, "Hm."),
    ],
)
def test_thoughts(fields: dict[str, Any], thoughts: str) -> None:
    assert messages(thought(**fields), said("a"))[0]["reasoning_content"] == thoughts


def test_thoughts_that_cannot_be_read_leave_nothing() -> None:
    assert messages(USER, thought(encrypted_content="gAAAA"), USER) == [ASKED, ASKED]
    assert messages(thought(encrypted_content="gAAAA"), said("a")) == [
        {"role": "assistant", "content": "a"}
    ]


def test_thoughts_alone_are_a_message_with_an_empty_text() -> None:
    assert messages(thought(content=CONTENT), USER)[0]["content"] == ""


def test_refusals_are_texts() -> None:
    item = said() | {"content": [{"type": "refusal", "refusal": "no"}]}
    assert messages(item) == [{"role": "assistant", "content": "no"}]


def test_calls_as_templates_take_them() -> None:
    body = ResponsesRequest.model_validate({"input": [call("c1", '{"a": 1}')]})
    [message] = input_messages(None, body.input)
    assert message["tool_calls"] == [
        {"type": "function", "id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}
    ]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ((output("a"),), "input[0].call_id"),
        ((USER, output("a"), call("a")), "input[1].call_id"),
        ((call("a", "{]"),), "input[0].arguments"),
        ((call("a", "[]"),), "input[0].arguments"),
    ],
)
def test_refused(items: tuple[Any, ...], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        messages(*items)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param} must be")
