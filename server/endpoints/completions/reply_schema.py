"""Completions as the OpenAPI page describes them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from server.schema.replies import (
    DraftMetrics,
    GeneratedChoice,
    IgnoredKeywords,
    Logprobs,
    PackedLogprobs,
    PromptLogprobList,
    Usage,
)


class CompletionChoice(GeneratedChoice):
    """One continuation. Optional fields are null or absent where they were not asked for."""

    text: str
    logprobs: Logprobs | PackedLogprobs | None
    prompt_logprobs: PromptLogprobList | PackedLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class CompletionReply(BaseModel):
    """The choices of prompt i are those from i*n to i*n + n - 1."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
    metrics: DraftMetrics | None = None
    ignored_keywords: IgnoredKeywords = None
