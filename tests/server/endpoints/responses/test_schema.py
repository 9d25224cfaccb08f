"""Bodies of Responses: parts and items by type, tools in one object, what refers to nothing."""

from __future__ import annotations

from typing import Any

import pytest

from server.endpoints.responses.schema import ResponsesRequest
from server.endpoints.responses.tools_schema import FunctionChoice, FunctionTool
from server.errors import ApiError
from server.schema.base import validate


def body(**fields: Any) -> ResponsesRequest:
    return validate(ResponsesRequest, {"input": "hello", **fields})


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        body(**fields)
    return caught.value


def test_a_text_is_a_message_of_the_user() -> None:
    [item] = body().input
    assert (item.type, item.role) == ("message", "user")
    assert [(part.type, part.text) for part in item.content or ()] == [("input_text", "hello")]


def test_what_another_server_added_to_an_item_is_accepted() -> None:
    parts = [{"type": "output_text", "text": "a", "logprobs": [], "parsed": {"x": 1}}]
    item = {"role": "assistant", "content": parts, "metadata": {"a": 1}, "name": "A", "type_": "x"}
    [made] = body(input=[item]).input
    assert [part.text for part in made.content or ()] == ["a"]
    assert body(tools=[{"type": "function", "name": "f", "cache_control": {}}]).tools


def test_nulls_of_items_are_left_out_whatever_their_names() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    [item] = body(input=[call | {"id": None, "async_": None, "role": None}]).input
    assert item.call_id == "c"


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "function_call", "call_id": "c", "name": "f"}, "needs arguments"),
        ({"type": 3}, "has the type 3, which is not served"),
        ({"role": "user", "content": None}, "of type message needs content"),
        ("hello", "must be an object"),
    ],
)
def test_items(item: Any, words: str) -> None:
    error = refusal(input=[item])
    assert words in error.message
    assert error.param == "input[0]"


def test_namespaces_of_calls_are_refused() -> None:
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    assert refusal(input=[item | {"namespace": "n"}]).param == "input[0].namespace"


def test_tools_and_choices() -> None:
    tool = {"type": "function", "name": "f", "parameters": None, "strict": None}
    made = body(tools=[tool], tool_choice={"type": "function", "name": "f"})
    assert made.tools is not None
    assert isinstance(made.tools[0], FunctionTool)
    assert made.tools[0].name == "f"
    assert made.tool_choice == FunctionChoice(type="function", name="f")
    assert refusal(tools=[{"type": "function"}]).param == "tools[0].name"
    assert refusal(tools=[tool | {"async": True}]).param == "tools[0].async"
    assert refusal(tools=[tool | {"type": ["function"]}]).param == "tools[0].type"
    assert "at most 256" in refusal(tools=[tool | {"name": f"f{i}"} for i in range(500)]).message


@pytest.mark.parametrize("name", ["store", "previous_response_id", "conversation", "include"])
def test_null_is_the_default(name: str) -> None:
    assert getattr(body(**{name: None}), name) is None
