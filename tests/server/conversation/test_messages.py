"""What templates get of messages that other clients wrote."""

from __future__ import annotations

from typing import Any

import pytest

from server.conversation.messages import template_messages
from server.errors import ApiError
from server.schema.messages import ChatMessage

USER = {"role": "user", "content": "a"}
CALL = {"name": "look", "arguments": '{"at": 1}'}


def made(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(m) for m in template_messages([ChatMessage.model_validate(m) for m in messages])]


def test_a_call_by_its_older_name() -> None:
    """`function_call` and the role "function" are what `tool_calls` and "tool" were before."""
    said = {"role": "assistant", "content": None, "function_call": CALL}
    result = {"role": "function", "name": "look", "content": "there"}
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
    assert made(USER, said, result) == [
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "name": "look", "content": "there"},
    ]


def test_a_tool_may_answer_a_call_by_its_older_name() -> None:
    said = {"role": "assistant", "function_call": CALL}
    assert made(USER, said, {"role": "tool", "content": "x"})[2]["content"] == "x"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [("", {}), ("{", {}), ('{"at": 2', {"at": 2}), ('{"at": 2, "to": "he', {"at": 2, "to": "he"})],
)
def test_arguments_that_were_cut_off(text: str, arguments: dict[str, Any]) -> None:
    """As a reply has them that met its limit within a call."""
    said = {"role": "assistant", "function_call": {"name": "f", "arguments": text}}
    [call] = made(USER, said)[1]["tool_calls"]
    assert call["function"]["arguments"] == arguments


def test_arguments_by_their_older_name_are_json() -> None:
    said = {"role": "assistant", "function_call": {"name": "f", "arguments": "{]"}}
    with pytest.raises(ApiError, match=r"messages\[1\]\.function_call\.arguments must be JSON"):
        made(USER, said)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "reasoning", "text": "hm"},
        {"type": "reasoning", "text": "hm", "providerOptions": {}},
    ],
)
def test_parts_of_thoughts(part: dict[str, Any]) -> None:
    """As litellm and Mistral's and the AI SDK's clients send them back."""
    said = {"role": "assistant", "content": [part, {"type": "text", "text": "b"}]}
    assert made(USER, said)[1] == {
        "role": "assistant",
        "content": "b",
        "reasoning_content": "hm",
    }
    alone = {"role": "assistant", "content": [part], "function_call": CALL}
    assert "content" not in made(USER, alone)[1]
    named = {**said, "reasoning_content": "own"}
    assert made(USER, named)[1]["reasoning_content"] == "own"


def test_thoughts_are_an_assistants() -> None:
    with pytest.raises(ApiError, match="which only an assistant's may"):
        made({"role": "user", "content": [{"type": "thinking", "thinking": "hm"}]})
