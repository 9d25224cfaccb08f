"""Messages of a conversation as clients write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, TypeAdapter

from server.schema.base import FieldNames, InnerModel, TypedModel, shown
from server.schema.fields import Accepted, NotYet

MAX_MESSAGES = 8192
_TEXT = FieldNames(frozenset(("text",)), frozenset(("annotations", "prompt_cache_breakpoint")))
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class ContentPart(TypedModel):
    """A part of a message's content: a text, or why the assistant did not answer."""

    kinds: ClassVar[Mapping[str, FieldNames]] = {
        **dict.fromkeys(("text", "input_text", "output_text"), _TEXT),
        "refusal": FieldNames(frozenset(("refusal",))),
    }

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Accepted = None
    prompt_cache_breakpoint: Accepted = None


_PARTS = TypeAdapter(list[ContentPart])


def _content(value: Any) -> str | list[ContentPart] | None:
    """Read a content; parts of a kind that a text model cannot read are refused by name."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"must be a text or a list of text parts, got {shown(value)}")
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in ContentPart.kinds:
            raise ValueError(f"holds a part of type {shown(kind)}: only text is served here")
    return _PARTS.validate_python(value)


Content = Annotated[
    str | list[ContentPart] | None,
    PlainValidator(_content, json_schema_input_type=str | list[ContentPart] | None),
]
"""Not a union, whose errors would name its members."""


def _arguments(value: Any) -> str | dict[str, Any]:
    if not isinstance(value, str | dict):
        raise ValueError(f"must be a JSON object, as text or as it is, got {shown(value)}")
    return value


Arguments = Annotated[
    str | dict[str, Any],
    PlainValidator(_arguments, json_schema_input_type=str | dict[str, Any]),
]


class CalledFunction(InnerModel):
    """The function of a call that an assistant made."""

    name: str
    arguments: Arguments = Field(description="A JSON object, as text or as it is.")


class ToolCall(InnerModel):
    """A call that an assistant made."""

    id: str | None = None
    type: Literal["function"] | None = None
    index: int | None = None
    function: CalledFunction


class ChatMessage(InnerModel):
    """One message of a conversation."""

    role: Role
    content: Content = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="What the assistant thought.")
    reasoning: str | None = Field(None, description="Another name of `reasoning_content`.")
    refusal: str | None = None
    annotations: Accepted = None
    provider_specific_fields: Accepted = None  # litellm's, of a message that it sends back
    audio: NotYet = None
    function_call: NotYet = None


Messages = Annotated[
    list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
]
