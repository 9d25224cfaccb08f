"""`POST /v1/chat/completions` as clients write it. Null means the default, everywhere."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from server.schema.base import BodyModel
from server.schema.fields import Accepted, NotYet, Only
from server.schema.generation import GenerationFields
from server.schema.messages import Messages
from server.schema.tools import ToolChoice, Tools

MAX_TEMPLATE_CHARS = 1 << 20
MAX_DOCUMENTS = 8192

Documents = Annotated[list[dict[str, Any]], Field(max_length=MAX_DOCUMENTS, fail_fast=True)]


class TemplateFields(BodyModel):
    """How the conversation becomes a prompt."""

    add_generation_prompt: bool | None = Field(
        None, description="The prompt ends with the beginning of a reply; the default is true."
    )
    continue_final_message: bool | None = Field(
        None,
        description="The reply goes on with the last message; it needs `add_generation_prompt` to "
        "be false.",
    )
    documents: Documents | None = Field(
        None, description="Documents that the template may show, each with a title and a text."
    )
    chat_template: str | None = Field(
        None,
        max_length=MAX_TEMPLATE_CHARS,
        description="The name of one of the model's templates, or, where the server runs with "
        "--trust-request-chat-template, a template of one's own.",
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables that the template may use."
    )
    reasoning_effort: str | None = Field(
        None, max_length=64, description="A variable that templates of thinking models use."
    )


class ChatRequest(GenerationFields, TemplateFields):
    """Reply to a conversation."""

    messages: Messages = Field(description="The conversation, oldest message first.")
    max_completion_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="A choice has at most this many tokens; by default the rest of the context.",
    )
    logprobs: bool | None = Field(
        None, description="The reply shows the logprob of each generated token."
    )
    top_logprobs: int | None = Field(
        None,
        ge=-1,
        description="With `logprobs`, this many top tokens are shown at each position; -1 shows "
        "all, where the server has no cap (--max-logprobs -1).",
    )
    echo: bool | None = Field(
        None, description="The content begins with that of the last message, if an assistant's."
    )

    tools: Tools | None = Field(None, description="Tools that the model may call.")
    tool_choice: ToolChoice | None = Field(
        None,
        description='With "auto", the default, the model decides; with "none" the message has no '
        'calls; with "required", or a tool\'s name, it is calls.',
    )
    parallel_tool_calls: bool | None = Field(
        None, description="With false the message has at most one call; the default is true."
    )
    include_reasoning: bool | None = Field(
        None, description="With false the reasoning is left out; the default is true."
    )
    thinking_token_budget: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="Once a choice has thought this many tokens, its thoughts are ended; by "
        "default nothing bounds them.",
    )

    modalities: Annotated[Any, Only(["text"])] = None
    prediction: Accepted = None
    verbosity: Accepted = None
    prompt_cache_options: Accepted = None
    add_special_tokens: Annotated[Any, Only(False)] = None
    functions: NotYet = None
    function_call: NotYet = None
    audio: NotYet = None
    web_search_options: NotYet = None
    moderation: NotYet = None
