"""Replies of a chat, as the OpenAPI page describes them; the server writes them without these."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from server.schema.replies import (
    DraftMetrics,
    GeneratedChoice,
    PackedLogprobs,
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
    rank: int = Field(description="The likeliest token has 1.")
    part: Literal["content", "markup"] = Field(
        description="What it belongs to; markup is what the content does not show."
    )


class ChatLogprobs(BaseModel):
    """The joined bytes of `content` are the content's; `tokens` has every generated token."""

    content: list[ContentEntry]
    refusal: None
    tokens: list[ReplyToken]
    mode: str = Field(description="The `logprobs_mode` of these values.")


class ReplyMessage(BaseModel):
    """What the model said."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(GeneratedChoice):
    """One reply. Optional fields are present where they were asked for."""

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
    metrics: DraftMetrics | None = None
