"""Events of a choice as output items: which are opened and ended, and whose logprobs are whose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.conversation.parsing.output import Event
from server.endpoints.responses.output import OutputItems


def output(**fields: Any) -> OutputItems:
    return OutputItems(
        **{
            "custom": (),
            "as_summary": False,
            "encrypts": False,
            "has_logprobs": True,
            "id_chars": None,
            **fields,
        }
    )


def entries(text: str) -> list[dict[str, Any]]:
    """Logprobs of tokens of one character each."""
    return [{"token": char, "bytes": list(char.encode())} for char in text]


def test_items_end_where_another_kind_begins() -> None:
    items = output()
    reported = [
        *(("reasoning", "a"), ("content", "b"), ("call", "f"), ("arguments", "{}")),
        *(("call", "g"), ("content", "c"), ("content", "d")),
    ]
    items.add([Event(kind, text) for kind, text in reported], [])  # type: ignore[arg-type]
    assert [item["type"] for item in items.items] == [
        *("reasoning", "message", "function_call", "function_call")
    ]
    items.finish("incomplete")
    assert [item["status"] for item in items.items] == ["completed"] * 4 + ["incomplete"]
    assert items.items[-1]["content"][0]["text"] == "cd"
    assert items.items[3]["arguments"] == ""


def test_ids_of_calls_have_the_length_that_the_format_asks_for() -> None:
    items = output(id_chars=9)
    items.add([Event("call", "f")], [])
    items.finish("completed")
    assert len(items.items[0]["call_id"]) == 9


def test_thoughts_are_wrapped_where_asked_for() -> None:
    items = output(encrypts=True)
    items.add([Event("reasoning", "Hm.")], [])
    items.finish("completed")
    assert items.items[0]["encrypted_content"].startswith("tailrace:")


@pytest.mark.parametrize("last", [{"token": "", "bytes": []}, {"token": "b", "bytes": [98]}])
def test_logprobs_behind_all_texts_are_told_once(last: dict[str, Any]) -> None:
    """Those of tokens without text, and those that come later than their text."""
    items = output()
    items.add([Event("content", "ab")], entries("a"))
    items.add([], [last])
    items.finish("completed")
    [message] = items.items
    assert message["content"][0]["logprobs"] == [*entries("a"), last]


@given(
    texts=st.tuples(st.text("aé🙂", min_size=1), st.text("bü", min_size=1)),
    late=st.integers(0, 3),
)
def test_logprobs_go_to_the_item_that_has_their_bytes(texts: tuple[str, str], late: int) -> None:
    """Also those that come only with a later piece, up to the item's end."""
    first, second = texts
    items = output()
    known = entries(first)
    cut = max(len(known) - late, 0)
    events = items.add([Event("content", first)], known[:cut])
    assert events[-1]["logprobs"] == known[:cut]
    items.add([Event("call", "f"), Event("content", second)], known[cut:] + entries(second))
    items.finish("completed")
    message, _, other = items.items
    assert message["content"][0]["logprobs"] == known
    assert other["content"][0]["logprobs"] == entries(second)
