"""Replies of SGLang's `/generate` as the OpenAPI page describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, RootModel

from server.schema.replies import WeightVersionSpan

LogprobEntry = tuple[float | None, int, str | None]


class EndReason(BaseModel):
    """Why a choice ended."""

    type: Literal["stop", "length", "abort"]
    matched: str | int | None = None
    length: int | None = None
    message: str | None = None
    status_code: int | None = None
    err_type: str | None = None


class MetaInfo(BaseModel):
    """What is known of a choice. Logprobs are triples of value, id and text."""

    id: str
    finish_reason: EndReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    weight_version: str
    weight_versions: list[WeightVersionSpan] | None = None
    e2e_latency: float = Field(description="Seconds since the body was read.")
    output_token_logprobs: list[LogprobEntry] | None = None
    output_top_logprobs: list[list[LogprobEntry]] | None = None
    output_token_ids_logprobs: list[list[LogprobEntry]] | None = None
    input_token_logprobs: list[LogprobEntry] | None = None
    input_top_logprobs: list[list[LogprobEntry] | None] | None = None
    input_token_ids_logprobs: list[list[LogprobEntry] | None] | None = None
    sampling_mask: list[list[int]] | None = None
    routed_experts: str | None = None
    routed_expert_weights: str | None = None


class GenerateReply(BaseModel):
    """One continuation."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: Any = None


class GenerateReplies(RootModel[GenerateReply | list[GenerateReply]]):
    """A continuation, or a list where there are several."""
