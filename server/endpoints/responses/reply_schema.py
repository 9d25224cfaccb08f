"""Replies about responses as the OpenAPI page describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from server.schema.replies import DraftMetrics, IgnoredKeywords


class ResponseReply(BaseModel):
    """A response. With `stream` it is in the first events and the last."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    model: str
    previous_response_id: str | None
    output: list[dict[str, Any]] = Field(
        description="Items of type reasoning, message, function_call and custom_tool_call, as they "
        "were generated."
    )
    usage: dict[str, Any] | None
    store: bool = Field(description="Whether the response is kept.")
    metrics: DraftMetrics | None = None
    ignored_keywords: IgnoredKeywords = None


class InputTokens(BaseModel):
    """The length of a prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(BaseModel):
    """A response that is gone."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItemList(BaseModel):
    """Items that a response replied to."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
