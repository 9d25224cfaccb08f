"""`POST /v1/responses` as clients write it. Null means the default, everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from server.endpoints.responses.items_schema import MAX_ID_CHARS, Items
from server.endpoints.responses.tools_schema import ResponseTools, ToolChoice
from server.errors import ClientNames
from server.schema.base import BodyModel, FieldNames, InnerModel, TypedModel
from server.schema.fields import Accepted, ModelName, NotYet, Only, Priority, RequestId, Seed
from server.schema.structured import JsonSchema

MAX_METADATA = 64
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
"""What `include` may name with an effect."""


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
    schema_: JsonSchema | None = Field(None, alias="schema")
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


def _few(value: Any) -> Any:
    """Refuse far too many before an error is made of each."""
    if isinstance(value, dict) and len(value) > MAX_METADATA:
        raise ValueError(f"is too long: at most {MAX_METADATA}, got {len(value)}")
    return value


Metadata = Annotated[dict[str, str], Field(max_length=MAX_METADATA), BeforeValidator(_few)]
Echoed = Annotated[
    str | None,
    Field(max_length=MAX_ID_CHARS, description="This has no effect; the reply repeats it."),
]
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.results",
    "web_search_call.action.sources",
    "file_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
]
"""Those after the first two are parts of items that no reply here has."""


class ResponsesRequest(BodyModel):
    """Reply to a conversation, as OpenAI's Responses API has it."""

    client_names: ClassVar = ClientNames(
        messages="input",
        prompts="input",
        max_tokens="max_output_tokens",
        logprobs="top_logprobs",
        named_tool="tool_choice.name",
        allowed="tool_choice.tools",
        response_format="text.format",
    )

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
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="The default is 0.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="The default is 0.")
    tools: ResponseTools | None = Field(
        None, description="Functions and custom tools that the model may call."
    )
    tool_choice: ToolChoice | None = Field(None, description='The default is "auto".')
    parallel_tool_calls: bool | None = Field(
        None, description="With false the reply has at most one call; the default is true."
    )
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Included] | None = Field(None, max_length=16)
    stream: bool | None = Field(None, description="The reply is sent as server-sent events.")
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = Field(
        None,
        description="The response is kept, so that it can be continued and read; the default is "
        "true, unless the server keeps none.",
    )
    background: bool | None = Field(
        None,
        description="With true the response is returned at once and made without the client, which "
        "reads it as a stored response; the default is false.",
    )
    previous_response_id: str | None = Field(
        None, max_length=MAX_ID_CHARS, description="The stored response that this one continues."
    )
    truncation: Literal["auto", "disabled"] | None = Field(
        None,
        description="With auto the oldest turns are left out of a conversation that is too long "
        "for the context; the default is disabled.",
    )
    metadata: Metadata | None = Field(None, description="The reply repeats it.")

    seed: Seed | None = Field(None, description="As for chats; OpenAI has no such field here.")
    top_k: int | None = Field(
        None, ge=-1, le=2**31 - 1, description="As for chats; OpenAI has no such field here."
    )
    min_p: float | None = Field(
        None, ge=0, le=1, description="As for chats; OpenAI has no such field here."
    )
    repetition_penalty: float | None = Field(
        None, ge=1e-6, le=1e6, description="As for chats; OpenAI has no such field here."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables that the template may use."
    )
    priority: Priority = None
    request_id: RequestId = None

    conversation: NotYet = None
    prompt: NotYet = None
    context_management: NotYet = None
    moderation: NotYet = None
    max_tool_calls: int | None = Field(
        None, ge=1, description="This has no effect, since no tools run here; the reply repeats it."
    )
    user: Echoed = None
    safety_identifier: Echoed = None
    prompt_cache_key: Echoed = None
    service_tier: Echoed = None
    prompt_cache_retention: Accepted = None
    prompt_cache_options: Accepted = None
    client_metadata: Accepted = None
