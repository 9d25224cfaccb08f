"""`POST /v1/responses` as clients write it. Null means the default, everywhere.

Nothing is stored, so what refers to something stored is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WrapValidator

from server.schema.base import BodyModel, FieldNames, InnerModel, TypedModel, shown
from server.schema.fields import Accepted, ModelName, NotYet, Only, Priority, RequestId, Seed
from server.schema.structured import JsonSchema
from server.schema.tools import MAX_TOOLS, ToolFunction, ToolMode, distinct, of_type

MAX_ITEMS = 8192
MAX_METADATA = 64
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
"""What `include` may name."""


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


def _as_parts(value: Any) -> Any:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


Parts = Annotated[
    list[ItemPart],
    Field(max_length=MAX_ITEMS, fail_fast=True),
    BeforeValidator(_as_parts, json_schema_input_type=str | list[ItemPart]),
]
"""Parts, or one text in place of them."""
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputItem(TypedModel):
    """A message, a call, a call's output, or what the model thought."""

    is_replayed: ClassVar[bool] = True
    kinds: ClassVar[Mapping[str, FieldNames]] = {
        "message": FieldNames(frozenset(("role", "content")), frozenset(("id", "status", "phase"))),
        "function_call": FieldNames(
            frozenset(("call_id", "name", "arguments")),
            frozenset(("id", "status", "async", "caller", "namespace")),
        ),
        "function_call_output": FieldNames(
            frozenset(("call_id", "output")),
            frozenset(("id", "status", "name", "caller", "namespace")),
        ),
        "reasoning": FieldNames(
            frozenset(), frozenset(("id", "status", "summary", "content", "encrypted_content"))
        ),
    }
    default_kind: ClassVar[str | None] = "message"

    type: str = "message"
    id: Accepted = None
    status: ItemStatus | None = None
    phase: Accepted = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Parts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = Field(None, description="The JSON text of an object.")
    output: Parts | None = None
    summary: Annotated[list[ItemPart], Field(max_length=MAX_ITEMS, fail_fast=True)] | None = None
    encrypted_content: str | None = Field(
        None, description="Thoughts as an earlier reply gave them; others' are passed over."
    )
    async_: Accepted = Field(None, alias="async")
    caller: Accepted = None
    namespace: NotYet = None


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


Items = Annotated[
    list[InputItem],
    Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True),
    BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem]),
]


class FunctionTool(ToolFunction):
    """A function that the model may call, as this route has it: in one object."""

    type: Literal["function"]
    output_schema: Accepted = None
    defer_loading: Annotated[Any, Only(False)] = None
    allowed_callers: Accepted = None
    async_: Annotated[Any, Only(False)] = Field(None, alias="async")


FunctionTools = Annotated[
    list[Annotated[FunctionTool, BeforeValidator(of_type("function"))]],
    Field(max_length=MAX_TOOLS),
    AfterValidator(distinct),
]


class FunctionChoice(InnerModel):
    """The function that must be called."""

    type: Literal["function"]
    name: str


def _choice(value: Any, _: object) -> str | FunctionChoice:
    """Read a choice; other words and types are refused in one sentence."""
    if isinstance(value, str) and value in get_args(ToolMode):
        return value
    if isinstance(value, dict) and value.get("type") == "function":
        return FunctionChoice.model_validate(value)
    got = shown(value.get("type")) if isinstance(value, dict) else shown(value)
    raise ValueError(
        'must be "none", "auto", "required" or {"type": "function", "name": ...}, '
        f"got {'an object of type ' if isinstance(value, dict) else ''}{got}"
    )


ToolChoice = Annotated[ToolMode | FunctionChoice, WrapValidator(_choice)]


class TextFormat(TypedModel):
    """What the text must be: anything, a JSON object, or JSON of a schema."""

    kinds: ClassVar[Mapping[str, FieldNames]] = {
        "text": FieldNames(frozenset()),
        "json_object": FieldNames(frozenset()),
        "json_schema": FieldNames(
            frozenset(("name", "schema")), frozenset(("description", "strict"))
        ),
    }

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, max_length=256, description="This is accepted and ignored.")
    schema_: JsonSchema = Field(None, alias="schema")
    description: str | None = Field(None, description="This is accepted and ignored.")
    strict: bool | None = Field(
        None, description="This is accepted and ignored: the schema is always kept to."
    )


class TextOptions(InnerModel):
    """How the text is written."""

    format: TextFormat | None = None
    verbosity: Accepted = None


class ReasoningOptions(InnerModel):
    """How the model thinks, and how that is shown."""

    effort: str | None = Field(
        None, max_length=64, description="A variable that templates of thinking models use."
    )
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Thoughts are in the item's summary, whole, and not in its content."
    )
    generate_summary: NotYet = None
    context: Accepted = None
    mode: Annotated[Any, Only("standard")] = None


class ResponseStreamOptions(InnerModel):
    """Options of a stream."""

    include_obfuscation: Accepted = None


def _not_stored(value: bool | None) -> bool | None:
    if value:
        raise ValueError("must be false or left out: responses are not stored here")
    return value


def _no_reference(value: Any) -> Any:
    if value is not None:
        raise ValueError(
            "must be null or left out: responses are not stored here, so `input` must hold the "
            f"whole conversation, got {shown(value)}"
        )
    return value


def _few(value: Any) -> Any:
    """Refuse far too many before an error is made of each."""
    if isinstance(value, dict) and len(value) > MAX_METADATA:
        raise ValueError(f"is too long: at most {MAX_METADATA}, got {len(value)}")
    return value


Metadata = Annotated[dict[str, str], Field(max_length=MAX_METADATA), BeforeValidator(_few)]
Reference = Annotated[Any, AfterValidator(_no_reference)]


class ResponsesRequest(BodyModel):
    """Reply to a conversation, as OpenAI's Responses API has it. Nothing is stored."""

    model: ModelName | None = Field(
        None, description="One of the names that `/v1/models` lists; the default is the first."
    )
    input: Items = Field(description="The conversation, oldest item first, or a user's text.")
    instructions: str | None = Field(None, description="A system message before the input.")
    max_output_tokens: int | None = Field(
        None,
        ge=1,
        le=2**31 - 1,
        description="The reply has at most this many tokens, thoughts included; by default the "
        "rest of the context.",
    )
    temperature: float | None = Field(None, ge=0, description="The default is 1.")
    top_p: float | None = Field(None, gt=0, le=1, description="The default is 1.")
    top_logprobs: int | None = Field(
        None, ge=0, description="The text has its tokens' logprobs and so many top tokens."
    )
    tools: FunctionTools | None = Field(None, description="Functions that the model may call.")
    tool_choice: ToolChoice | None = Field(None, description='The default is "auto".')
    parallel_tool_calls: bool | None = Field(
        None, description="With false the reply has at most one call; the default is true."
    )
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = (
        Field(None, max_length=16)
    )
    stream: bool | None = Field(None, description="The reply is sent as server-sent events.")
    stream_options: ResponseStreamOptions | None = None
    store: Annotated[bool | None, AfterValidator(_not_stored)] = Field(
        None, description="Nothing is stored: false or null only, which is the default here."
    )
    metadata: Metadata | None = Field(None, description="The reply repeats it.")

    seed: Seed | None = Field(None, description="As for chats; OpenAI has no such field here.")
    top_k: int | None = Field(
        None, ge=-1, le=2**31 - 1, description="As for chats; OpenAI has no such field here."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables that the template may use."
    )
    priority: Priority = None
    request_id: RequestId = None

    truncation: Annotated[Any, Only("disabled")] = None
    background: Annotated[Any, Only(False)] = None
    previous_response_id: Reference = None
    conversation: Reference = None
    prompt: NotYet = None
    context_management: NotYet = None
    moderation: NotYet = None
    max_tool_calls: Accepted = None
    user: Accepted = None
    safety_identifier: Accepted = None
    prompt_cache_key: Accepted = None
    prompt_cache_retention: Accepted = None
    prompt_cache_options: Accepted = None
    service_tier: Accepted = None
    client_metadata: Accepted = None
