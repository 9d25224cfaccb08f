"""`POST /v1/chat/completions` as clients write it. Null means the default, everywhere."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from server.errors import ClientNames
from server.schema.fields import Accepted, NotYet, Only
from server.schema.generation import GenerationFields
from server.schema.messages import Messages
from server.schema.template import TemplateFields
from server.schema.tools import ToolChoice, Tools


class ChatRequest(GenerationFields, TemplateFields):
    """Reply to a conversation."""

    client_names: ClassVar = ClientNames(
        prompts="messages",
        logprobs="top_logprobs",
        named_tool="tool_choice.function.name",
        allowed="tool_choice.allowed_tools.tools",
        thinking_budget="thinking_token_budget",
    )

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
        "all, where --max-logprobs allows as many.",
    )
    echo: bool | None = Field(
        None, description="The content begins with that of the last message, if an assistant's."
    )

    tools: Tools | None = Field(None, description="Tools that the model may call.")
    tool_choice: ToolChoice | None = Field(
        None,
        description='With "auto", the default, the model decides; with "none" the message has no '
        'calls; with "required", or a tool\'s name, it is calls; `allowed_tools` names those that '
        "may be called.",
    )
    parallel_tool_calls: bool | None = Field(
        None, description="With false the message has at most one call; the default is true."
    )
    include_reasoning: bool | None = Field(
        None, description="With false the reasoning is left out; the default is true."
    )
    separate_reasoning: bool | None = Field(
        None,
        description="With false the reasoning stays in the content, as the model wrote it; the "
        "default is true.",
    )
    stream_reasoning: bool | None = Field(
        None,
        description="With false a stream has the reasoning whole, once it has ended; the default "
        "is true.",
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
    function_call: Annotated[Any, Only("none", "auto")] = None
    audio: NotYet = None
    web_search_options: NotYet = None
    moderation: NotYet = None

    @property
    def token_limit(self) -> int | None:
        """The limit of the reply's tokens, by either of its names."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def num_top(self) -> int | None:
        """The top tokens that are shown at each generated position; None for no logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None
