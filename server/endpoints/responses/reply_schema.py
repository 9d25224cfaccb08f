"""Responses as the OpenAPI page describes them."""

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
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    model: str
    output: list[dict[str, Any]] = Field(
        description="Items of type reasoning, message and function_call, as they were generated."
    )
    usage: dict[str, Any] | None
    store: Literal[False]
    metrics: DraftMetrics | None = None
    ignored_keywords: IgnoredKeywords = None
