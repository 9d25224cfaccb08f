"""Replies of `/inference/v1/generate` as the OpenAPI page describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from server.schema.replies import (
    DraftMetrics,
    ExplicitLogprobs,
    PackedArray,
    PackedLogprobs,
    Usage,
    WeightVersionSpan,
)


class IdLogprob(BaseModel):
    """An id with its value; the rank is 1 for the highest."""

    token_id: int
    token: str
    logprob: float
    rank: int


class IdPosition(IdLogprob):
    """A generated token, and top tokens: itself, then others by rank."""

    top_logprobs: list[IdLogprob]


class IdLogprobs(BaseModel):
    """An entry for each generated token."""

    content: list[IdPosition]
    mode: str


class TokensChoice(BaseModel):
    """One continuation."""

    index: int
    finish_reason: Literal["stop", "length", "abort"] | None
    stop_reason: str | int | None
    token_ids: list[int]
    text: str | None = Field(None, description='With `output_mode` "text".')
    logprobs: IdLogprobs | PackedLogprobs | None
    routed_experts: str | None = Field(
        description="Experts that tokens took: a `.npy` file in base64; see the request's "
        "`return_routed_experts`. Null without it, and for a choice that was aborted while it had "
        "to wait."
    )
    routed_expert_weights: str | None = Field(None, description="Their weights, likewise.")
    sampling_mask: list[list[int]] | None
    weight_versions: list[WeightVersionSpan] | None
    logprob_token_ids: ExplicitLogprobs | None = None
    kept_logprobs: list[float] | PackedArray | None = None
    token_origins: list[str] | None = None


class GenerateTokensReply(BaseModel):
    """The choices of one prompt."""

    request_id: str
    output_mode: Literal["tokens", "text"]
    model: str
    created: int
    choices: list[TokensChoice]
    usage: Usage | None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] | PackedLogprobs | None = None
    prompt_token_id_logprobs: str | None = Field(
        None, description="A `.npy` file in base64: float32 [positions, ids], from position 1."
    )
    metrics: DraftMetrics | None = None
    system_fingerprint: str


class PackedRoutes(BaseModel):
    """Experts that tokens took, [tokens - 1, layers, experts taken]."""

    data: str = Field(description="Base64, the last dimension fastest.")
    shape: list[int]
    dtype: Literal["uint8", "int16", "int32"] = Field(
        description="The narrowest that holds the ids that there are."
    )


class SkyrlChoice(TokensChoice):
    """One continuation."""

    routed_experts: PackedRoutes | None  # type: ignore[assignment]  # another form


class SkyrlGenerateReply(GenerateTokensReply):
    """The choices of one prompt."""

    choices: list[SkyrlChoice]  # type: ignore[assignment]  # another form
