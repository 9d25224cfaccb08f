"""Messages of blocks as the messages of a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from server.endpoints.messages.schema import CountTokensRequest
from server.endpoints.messages.turns import TurnMessages
from server.errors import ApiError


def conversation(*turns: dict[str, Any], system: Any = None) -> TurnMessages:
    fields = {"model": "m", "messages": list(turns), "system": system}
    body = CountTokensRequest.model_validate(fields)
    return TurnMessages(body.system, body.messages)


def messages(*turns: dict[str, Any], system: Any = None) -> list[dict[str, Any]]:
    return conversation(*turns, system=system).messages


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(use_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": use_id, "name": "f", "input": {"a": 1}}


def result(use_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": use_id, **fields}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def model(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def test_texts_and_the_system() -> None:
    assert messages(user("hi"), user(text("a"), text("b")), system=[text("x"), text("y")]) == [
        {"role": "system", "content": "x\ny"},
        {"role": "user", "content": "hi"},
        {"role": "user", "content": "a\nb"},
    ]


def test_a_turn_of_the_model() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    turn = model(thinking, redacted, text("a"), use("t1"))
    assert messages(user("hi"), turn, user(result("t1")))[1] == {
        "role": "assistant",
        "reasoning_content": "Hm.",
        "content": "a",
        "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
        ],
    }
    assert "content" not in messages(user("hi"), model(use("t1")), user(result("t1")))[1]


def test_results_come_before_the_text_of_their_message() -> None:
    answer = user(result("t2", content="2"), text("Go on."), result("t1", content=[text("1")]))
    assert messages(user("hi"), model(use("t1"), use("t2")), answer)[2:] == [
        {"role": "tool", "tool_call_id": "t2", "content": "2"},
        {"role": "tool", "tool_call_id": "t1", "content": "1"},
        {"role": "user", "content": "Go on."},
    ]


def test_a_result_may_be_empty() -> None:
    [*_, reported] = messages(user("hi"), model(use("t1")), user(result("t1", is_error=True)))
    assert reported == {"role": "tool", "tool_call_id": "t1", "content": ""}


def test_the_last_message_may_begin_the_reply() -> None:
    assert conversation(user("hi"), model(text("It"))).continues
    assert not conversation(user("hi"), model(text("It")), user("go")).continues


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ((user(result("t1")),), "messages[0].content[0].tool_use_id must be the id of a tool_use"),
        ((user("a"), model(use("t1")), user(result("t2"))), '(t1), got "t2"'),
        (
            (user("a"), model(use("t1")), user("b"), user(result("t1"))),
            "messages[3].content[0].tool_use_id",
        ),
        ((model(result("t1")),), "messages[0].content[0].type must be one of text, thinking"),
        ((user(use("t1")),), 'in a message of the user, got "tool_use"'),
        ((user("a"), model(use("t1"))), "messages[1] must be followed by the results"),
    ],
)
def test_refused(turns: tuple[dict[str, Any], ...], words: str) -> None:
    with pytest.raises(ApiError) as caught:
        conversation(*turns)
    assert words in caught.value.message
