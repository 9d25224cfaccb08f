"""The input of a tool's use whose arguments were cut off, and usage with cached tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.endpoints.messages.shape import input_of, message_usage

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(value=st.dictionaries(st.text(max_size=3), VALUES, max_size=3), data=st.data())
def test_any_beginning_of_arguments_is_an_input(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False)
    cut = input_of(text[: data.draw(st.integers(0, len(text)))])
    assert set(cut) <= set(value)
    assert input_of(text) == value


def test_what_was_whole_is_kept() -> None:
    assert input_of('{"a": 1, "b": [2], "c": "x') == {"a": 1, "b": [2]}


@pytest.mark.parametrize("arguments", ["[1]", "3", '{"a" 1}', "x"])
def test_what_is_no_object_is_an_empty_input(arguments: str) -> None:
    assert input_of(arguments) == {}


def test_cached_tokens_are_counted_apart() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    assert message_usage(usage)["input_tokens"] == 9
    reported = message_usage(usage | {"prompt_tokens_details": {"cached_tokens": 8}})
    assert (reported["input_tokens"], reported["cache_read_input_tokens"]) == (1, 8)
