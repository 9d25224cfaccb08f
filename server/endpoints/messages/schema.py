"""`POST /v1/messages` and `/v1/messages/count_tokens` as Anthropic's clients write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from server.errors import ClientNames
from server.schema.base import BodyModel, FieldNames, InnerModel, ReplayedModel, TypedModel
from server.schema.fields import (
    MAX_STOP_STRINGS,
    Accepted,
    ModelName,
    NotYet,
    Only,
    Priority,
    RequestId,
    Seed,
    StopString,
    as_list,
)
from server.schema.structured import JsonSchema
from server.schema.tools import MAX_TOOLS, Parameters, ToolName, distinct, of_type

MAX_TURNS = MAX_BLOCKS = 8192
"""Messages of a conversation, and blocks of a message."""
_CACHE = frozenset(("cache_control",))


def _as_blocks(value: Any) -> list[Any]:
    rule = "a text or a list of blocks"
    return as_list(value, rule, lambda text: {"type": "text", "text": text})


class TextBlock(TypedModel):
    """A block of text."""

    is_replayed: ClassVar[bool] = True
    kinds: ClassVar[Mapping[str, FieldNames]] = {
        "text": FieldNames(frozenset(("text",)), _CACHE | {"citations"})
    }

    type: Literal["text"]
    text: str
    cache_control: Accepted = None
    citations: Accepted = None


TextBlocks = Annotated[
    list[TextBlock],
    Field(max_length=MAX_BLOCKS, fail_fast=True),
    BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock]),
]
"""Blocks of text, or one text in place of them."""


class Block(TypedModel):
    """A block of a message: text, thoughts, a tool's use, or its result."""

    is_replayed: ClassVar[bool] = True
    kinds: ClassVar[Mapping[str, FieldNames]] = {
        **TextBlock.kinds,
        "thinking": FieldNames(frozenset(("thinking",)), frozenset(("signature",))),
        "redacted_thinking": FieldNames(frozenset(("data",))),
        "tool_use": FieldNames(
            frozenset(("id", "name", "input")), _CACHE | {"caller", "toolset_name"}
        ),
        "tool_result": FieldNames(
            frozenset(("tool_use_id",)), _CACHE | {"content", "is_error", "toolset_name"}
        ),
    }

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: TextBlocks | None = None
    is_error: bool | None = Field(None, description="This is accepted; the content says so.")
    signature: Accepted = None
    data: Accepted = None
    citations: Accepted = None
    cache_control: Accepted = None
    caller: Accepted = None
    toolset_name: NotYet = None


Blocks = Annotated[
    list[Block],
    Field(max_length=MAX_BLOCKS, fail_fast=True),
    BeforeValidator(_as_blocks, json_schema_input_type=str | list[Block]),
]


class Turn(ReplayedModel):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class ClientTool(ReplayedModel):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: Parameters
    strict: bool | None = None
    cache_control: Accepted = None
    input_examples: Accepted = None
    eager_input_streaming: Accepted = None
    allowed_callers: Accepted = None
    defer_loading: Annotated[Any, Only(False)] = None


ClientTools = Annotated[
    list[Annotated[ClientTool, BeforeValidator(of_type("custom"))]],
    Field(max_length=MAX_TOOLS),
    AfterValidator(distinct),
]


class ClientToolChoice(TypedModel):
    """Which tools may or must be used."""

    kinds: ClassVar[Mapping[str, FieldNames]] = {
        "auto": FieldNames(frozenset(), frozenset(("disable_parallel_tool_use",))),
        "any": FieldNames(frozenset(), frozenset(("disable_parallel_tool_use",))),
        "tool": FieldNames(frozenset(("name",)), frozenset(("disable_parallel_tool_use",))),
        "none": FieldNames(frozenset()),
    }

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = Field(
        None, description="With true the reply has at most one use of a tool."
    )


_DISPLAY = frozenset(("display",))


class ThinkingOptions(TypedModel):
    """Whether the model thinks, for how long, and whether that is shown."""

    kinds: ClassVar[Mapping[str, FieldNames]] = {
        "enabled": FieldNames(frozenset(("budget_tokens",)), _DISPLAY),
        "adaptive": FieldNames(frozenset(), _DISPLAY),
        "disabled": FieldNames(frozenset()),
    }

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    display: Literal["summarized", "omitted"] | None = Field(
        None, description='With "omitted" the reply has no thinking blocks; else they are whole.'
    )


class JsonOutput(InnerModel):
    """The text is JSON of a schema."""

    type: Literal["json_schema"]
    schema_: JsonSchema = Field(alias="schema")


class OutputOptions(InnerModel):
    """How much effort is made, and what the text must be."""

    effort: str | None = Field(
        None, max_length=64, description="A variable that templates of thinking models use."
    )
    format: JsonOutput | None = None


class CountTokensRequest(BodyModel):
    """Count the tokens of a conversation's prompt, as Anthropic's Messages API has it."""

    client_names: ClassVar = ClientNames(
        prompts="messages",
        named_tool="tool_choice.name",
        response_format="output_config.format",
        thinking_budget="thinking.budget_tokens",
    )

    model: ModelName = Field(description="One of the names that `/v1/models` lists.")
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_TURNS, fail_fast=True)] = (
        Field(description="The conversation, oldest message first.")
    )
    system: TextBlocks | None = Field(None, description="A system message before the others.")
    tools: ClientTools | None = Field(None, description="Tools that the model may use.")
    tool_choice: ClientToolChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables that the template may use; Anthropic has no such field."
    )

    cache_control: Accepted = None
    context_management: Accepted = None
    speed: Accepted = None
    user_profile_id: Accepted = None
    workspace_id: Accepted = None
    mcp_servers: NotYet = None


class MessagesRequest(CountTokensRequest):
    """Reply to a conversation, as Anthropic's Messages API has it."""

    max_tokens: int = Field(
        ge=0, le=2**31 - 1, description="The reply has at most this many tokens, thoughts included."
    )
    stop_sequences: list[StopString] | None = Field(
        None,
        max_length=MAX_STOP_STRINGS,
        description="The reply ends before the first of these texts that it completes.",
    )
    temperature: float | None = Field(None, ge=0, description="The default is 1.")
    top_p: float | None = Field(None, gt=0, le=1, description="The default is 1.")
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1, description="The default keeps all.")
    stream: bool | None = Field(None, description="The reply is sent as server-sent events.")
    seed: Seed | None = Field(None, description="As for chats; Anthropic has no such field.")
    priority: Priority = None
    request_id: RequestId = None

    thread: Any = Field(
        None, description="This is refused, since nothing is stored: send the whole conversation."
    )
    metadata: Accepted = None
    service_tier: Accepted = None
    inference_geo: Accepted = None
    container: NotYet = None
    diagnostics: Accepted = None
