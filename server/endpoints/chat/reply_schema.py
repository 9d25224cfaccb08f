"""Replies of a chat, as the OpenAPI page describes them; the server writes them without these."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from server.schema.replies import (
    DraftMetrics,
    GeneratedChoice,
    IgnoredKeywords,
    PackedLogprobs,
    PromptLogprobList,
    Usage,
)


class TopEntry(BaseModel):
    """One of the tokens that are shown at a position."""

    token: str
    logprob: float = Field(description="The token's value; -inf is written as -9999.0.")
    bytes: list[int]
    token_id: int


class ContentEntry(TopEntry):
    """One token of the content."""

    top_logprobs: list[TopEntry] = Field(
        description="The top tokens, best first, then `logprob_token_ids` that are not among them."
    )


class ReplyToken(BaseModel):
    """One generated token."""

    token_id: int
    logprob: float
    rank: int = Field(description="The likeliest token has 1.")
    part: Literal["reasoning", "content", "tool", "markup"] = Field(
        description="What it belongs to: tool is a call's name, keys and arguments; markup is what "
        "the message does not show."
    )


class ChatLogprobs(BaseModel):
    """The joined bytes of `content` are the content's; `tokens` has every generated token."""

    content: list[ContentEntry]
    refusal: None
    tokens: list[ReplyToken]
    mode: str = Field(description="The `logprobs_mode` of these values.")


class ReplyFunction(BaseModel):
    """The function that is to be called."""

    name: str
    arguments: str = Field(description="A JSON object; the beginning of one where it was cut off.")


class ReplyToolCall(BaseModel):
    """A call that the model asks for."""

    id: str
    type: Literal["function"]
    function: ReplyFunction


class ReplyMessage(BaseModel):
    """What the model said. Optional fields are present where there is something of them."""

    role: Literal["assistant"]
    content: str | None = Field(description="Null where there are calls and nothing besides.")
    refusal: None
    reasoning_content: str | None = Field(
        None, description="What the model thought; --reasoning-field gives it another name."
    )
    tool_calls: list[ReplyToolCall] | None = None


class ChatChoice(GeneratedChoice):
    """One reply. Optional fields are null or absent where they were not asked for."""

    message: ReplyMessage
    logprobs: ChatLogprobs | PackedLogprobs | None


class ChatReply(BaseModel):
    """The replies to a conversation, `n` of them."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_token_ids: list[int] | None = Field(
        description="With `return_token_ids`; a stream has it in its first chunk."
    )
    prompt_logprobs: PromptLogprobList | PackedLogprobs | None = Field(
        description="With `prompt_logprobs`; a stream has it in its first chunk."
    )
    metrics: DraftMetrics | None = None
    ignored_keywords: IgnoredKeywords = None
