"""Messages of a conversation as clients write them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter, WrapValidator

from server.schema.base import ReplayedModel, shown
from server.schema.fields import Accepted, NotYet

MAX_MESSAGES = MAX_PARTS = MAX_CALLS = 8192
"""Errors name only the first bad one of them: each of very many would take long to make."""
ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
"""Roles that OpenAI has; templates may take others."""
_THOUGHTS = ("thinking", "reasoning")
Role = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


class ContentPart(ReplayedModel):
    """A part of a message's content: a text, why the assistant did not answer, or its thoughts."""

    type: Literal["text", "input_text", "output_text", "refusal", "thinking", "reasoning"]
    text: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    annotations: Accepted = None
    prompt_cache_breakpoint: Accepted = None

    @property
    def is_thought(self) -> bool:
        return self.type in _THOUGHTS

    @property
    def words(self) -> str | None:
        """What the part says."""
        match self.type:
            case "refusal":
                return self.refusal
            case "thinking":
                return self.text if self.thinking is None else self.thinking
            case _:
                return self.text


_PARTS = TypeAdapter(Annotated[list[ContentPart], Field(max_length=MAX_PARTS, fail_fast=True)])
_PART_TYPES = get_args(ContentPart.model_fields["type"].annotation)


def _content(value: Any, _: object) -> str | list[ContentPart] | None:
    """Read a content; parts of a kind that a text model cannot read are refused by name."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"must be a text or a list of text parts, got {shown(value)}")
    for part in value[:MAX_PARTS]:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in _PART_TYPES:
            raise ValueError(f"holds a part of type {shown(kind)}: only text is served here")
    parts = _PARTS.validate_python(value)
    for i, part in enumerate(parts):
        if part.words is None:
            name = part.type if part.type in ("refusal", "thinking") else "text"
            raise ValueError(f"has no {name} in its part [{i}], of type {part.type}")
    return parts


Content = Annotated[str | list[ContentPart] | None, WrapValidator(_content)]
"""Read without the union, whose errors would name its members."""


def _arguments(value: Any, _: object) -> str | dict[str, Any]:
    if not isinstance(value, str | dict):
        raise ValueError(f"must be a JSON object, as text or as it is, got {shown(value)}")
    return value


Arguments = Annotated[str | dict[str, Any], WrapValidator(_arguments)]


class CalledFunction(ReplayedModel):
    """The function of a call that an assistant made."""

    name: str
    arguments: Arguments = Field(description="A JSON object, as text or as it is.")


class ToolCall(ReplayedModel):
    """A call that an assistant made."""

    id: str | None = None
    type: Literal["function"] | None = None
    index: int | None = None
    function: CalledFunction


class ChatMessage(ReplayedModel):
    """One message of a conversation."""

    role: Role
    content: Content = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="What the assistant thought.")
    reasoning: str | None = Field(None, description="Another name of `reasoning_content`.")
    refusal: str | None = None
    annotations: Accepted = None
    provider_specific_fields: Accepted = None  # litellm's, of a message that it sends back
    audio: NotYet = None
    function_call: CalledFunction | None = Field(
        None, description="The older spelling of one entry of `tool_calls`."
    )

    @property
    def calls(self) -> list[ToolCall]:
        """The calls that an assistant made, by either name."""
        if self.tool_calls or self.function_call is None:
            return self.tool_calls or []
        return [ToolCall(function=self.function_call)]


Messages = Annotated[
    list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
]
