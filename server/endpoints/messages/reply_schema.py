"""Messages and errors as the OpenAPI page describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from server.schema.replies import DraftMetrics, IgnoredKeywords


class MessageReply(BaseModel):
    """A message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]] = Field(
        description="Blocks of type thinking, text and tool_use, as they were generated."
    )
    stop_reason: Literal[
        "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"
    ]
    stop_sequence: str | None
    usage: dict[str, Any]
    metrics: DraftMetrics | None = None
    ignored_keywords: IgnoredKeywords = None


class AnthropicErrorBody(BaseModel):
    """What went wrong."""

    type: str
    message: str
    details: dict[str, str] | None = Field(
        None, description="`error_code` is a word for programs, where there is one."
    )


class AnthropicError(BaseModel):
    """Every error of Anthropic's routes."""

    type: Literal["error"]
    error: AnthropicErrorBody


class TokenCount(BaseModel):
    """How many tokens a prompt has."""

    input_tokens: int
