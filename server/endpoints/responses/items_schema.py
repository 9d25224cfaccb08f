"""Items of a conversation as clients of `POST /v1/responses` write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from server.schema.base import FieldNames, TypedModel
from server.schema.fields import Accepted, NotYet, as_list

MAX_ITEMS = 8192
MAX_ID_CHARS = 512
CALLS = frozenset(("function_call", "custom_tool_call", "local_shell_call"))
OUTPUTS = frozenset(("function_call_output", "custom_tool_call_output"))
HOSTED = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("computer_call", "mcp_call", "mcp_list_tools", "compaction"),
)
"""Items of tools that another server ran: they are passed over."""


class ItemPart(TypedModel):
    """A part of an item: a text, a refusal, or thoughts."""

    is_replayed: ClassVar[bool] = True
    kinds: ClassVar[Mapping[str, FieldNames]] = {
        "input_text": FieldNames(frozenset(("text",)), frozenset(("prompt_cache_breakpoint",))),
        "output_text": FieldNames(frozenset(("text",)), frozenset(("annotations", "logprobs"))),
        "refusal": FieldNames(frozenset(("refusal",))),
        "summary_text": FieldNames(frozenset(("text",))),
        "reasoning_text": FieldNames(frozenset(("text",))),
    }

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Accepted = None
    logprobs: Accepted = None
    prompt_cache_breakpoint: Accepted = None


def _as_parts(value: Any) -> list[Any]:
    rule = "a text or a list of parts"
    return as_list(value, rule, lambda text: {"type": "input_text", "text": text})


Parts = Annotated[
    list[ItemPart],
    Field(max_length=MAX_ITEMS, fail_fast=True),
    BeforeValidator(_as_parts, json_schema_input_type=str | list[ItemPart]),
]
"""Parts, or one text in place of them."""
ItemStatus = Literal["in_progress", "completed", "incomplete"]


def _own_id(value: Any) -> Any:
    """An id that can be kept; another server's of any other kind is passed over."""
    return value if isinstance(value, str) and len(value) <= MAX_ID_CHARS else None


ItemId = Annotated[str | None, BeforeValidator(_own_id)]
_CALL_FIELDS = frozenset(("id", "status", "async", "caller", "namespace"))
_OUTPUT_FIELDS = frozenset(("id", "status", "name", "caller", "namespace"))


class InputItem(TypedModel):
    """A message, a call, a call's output, what the model thought, or a stored item by its id."""

    is_replayed: ClassVar[bool] = True
    kinds: ClassVar[Mapping[str, FieldNames]] = {
        "message": FieldNames(frozenset(("role", "content")), frozenset(("id", "status", "phase"))),
        "function_call": FieldNames(frozenset(("call_id", "name", "arguments")), _CALL_FIELDS),
        "function_call_output": FieldNames(frozenset(("call_id", "output")), _OUTPUT_FIELDS),
        "custom_tool_call": FieldNames(frozenset(("call_id", "name", "input")), _CALL_FIELDS),
        "custom_tool_call_output": FieldNames(frozenset(("call_id", "output")), _OUTPUT_FIELDS),
        "local_shell_call": FieldNames(
            frozenset(("call_id", "action")), frozenset(("id", "status"))
        ),
        "reasoning": FieldNames(
            frozenset(), frozenset(("id", "status", "summary", "content", "encrypted_content"))
        ),
        "item_reference": FieldNames(frozenset(("id",))),
        **dict.fromkeys(HOSTED, FieldNames(frozenset())),
    }
    default_kind: ClassVar[str | None] = "message"

    type: str = "message"
    id: ItemId = None
    status: ItemStatus | None = None
    phase: Accepted = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Parts | None = None
    call_id: str | None = Field(None, max_length=MAX_ID_CHARS)
    name: str | None = None
    arguments: str | None = Field(None, description="The JSON text of an object.")
    input: str | None = Field(None, description="What a custom tool was given.")
    action: dict[str, Any] | None = Field(None, description="What a shell was given.")
    output: Parts | None = None
    summary: Annotated[list[ItemPart], Field(max_length=MAX_ITEMS, fail_fast=True)] | None = None
    encrypted_content: str | None = Field(
        None, description="Thoughts as an earlier reply gave them; others' are passed over."
    )
    async_: Accepted = Field(None, alias="async")
    caller: Accepted = None
    namespace: NotYet = None


def _as_items(value: Any) -> list[Any]:
    rule = "a text or a list of items"
    items = as_list(value, rule, lambda text: {"role": "user", "content": text})
    return [_as_reference(item) for item in items]


def _as_reference(item: Any) -> Any:
    """A reference may leave out its type."""
    if isinstance(item, dict) and item.get("type") is None and item.keys() <= {"type", "id"}:
        return item | {"type": "item_reference"}
    return item


Items = Annotated[
    list[InputItem],
    Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True),
    BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem]),
]
