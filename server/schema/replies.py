"""Replies, as the OpenAPI page describes them; the server writes them without these types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str = Field(description="Names the field, its limit and the value, in words.")
    type: str = Field(
        description='The class of the error, such as "invalid_request_error" or "server_error".'
    )
    param: str | None = Field(description="The field of the request that the error is about.")
    code: str | None = Field(description='A word for programs, such as "context_length_exceeded".')


class ErrorReply(BaseModel):
    """Every error, of every route."""

    error: ErrorBody


class Usage(BaseModel):
    """Tokens in and out; a prompt counts once, whatever `n` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None = Field(
        None,
        description="With --enable-prompt-tokens-details, `cached_tokens` counts the prompt tokens "
        "that were found computed.",
    )
    completion_tokens_details: dict[str, int] | None = Field(
        None,
        description="Of a chat with a model that thinks, `reasoning_tokens` counts the tokens of "
        "the reasoning.",
    )


class PackedArray(BaseModel):
    """An array, with `logprobs_format` "packed"."""

    dtype: Literal["<f4", "<f8", "<i4"] = Field(description="The type of a value, as NumPy has it.")
    shape: list[int]
    data: str = Field(
        description="The little-endian values in base64, the last index running fastest."
    )


class PackedLogprobs(BaseModel):
    """Logprobs with `logprobs_format` "packed", of generated tokens and of prompts alike.

    `token_ids` has every position; the other arrays have those from `start` on, the positions that
    `Logprobs` or `prompt_logprobs` does not show as null. The chosen token is in the top lists
    only where it belongs there.
    """

    start: int
    token_ids: PackedArray
    token_logprobs: PackedArray
    ranks: PackedArray
    top_token_ids: PackedArray
    top_logprobs: PackedArray
    text_offset: PackedArray | None = Field(
        None, description="Where each token begins in `text`; `prompt_logprobs` have none."
    )
    mode: str = Field(description="The `logprobs_mode` of these values.")


class Logprobs(BaseModel):
    """One item for each token, echoed prompt tokens first; null where there is no value."""

    tokens: list[str] = Field(
        description="Each token's text, with U+FFFD where its bytes are not characters."
    )
    token_logprobs: list[float | None] = Field(
        description="Each token's value; -inf is written as -9999.0."
    )
    top_logprobs: list[dict[str, float] | None] = Field(
        description="The top tokens, the token itself and `logprob_token_ids`, best first. Where "
        'tokens have one text, the best has it as its key and the others have "token_id:N".'
    )
    text_offset: list[int] = Field(description="Where in `text` each token begins, in characters.")
    ranks: list[int | None] = Field(description="Each token's rank; the likeliest token has 1.")
    token_ids: list[int]
    top_token_ids: list[list[int] | None] = Field(
        description="The ids of `top_logprobs`, in the same order."
    )
    bytes: list[list[int]] = Field(description="Each token's bytes; joined they are the text's.")
    mode: str = Field(description="The `logprobs_mode` of these values.")


class ExplicitLogprobs(BaseModel):
    """One row for each generated position; the ids are in the order in which they were asked."""

    token_ids: list[int]
    logprobs: list[list[float]] | PackedArray


class PromptExplicitLogprobs(ExplicitLogprobs):
    """One row for each prompt position from `start` on."""

    start: int


class WeightVersionSpan(BaseModel):
    """Generated tokens `start` to `end - 1` were drawn by the weights of this version."""

    version: str
    start: int
    end: int


class GeneratedChoice(BaseModel):
    """What choices of completions and of chats have in common."""

    index: int
    finish_reason: Literal["stop", "length", "tool_calls", "abort"] | None = Field(
        description="`tool_calls` is a chat's alone; `abort` is of a choice that a command to the "
        "server ended."
    )
    stop_reason: str | int | None = Field(
        description="The stop string or stop id that ended the choice; null for the end of text."
    )
    weight_versions: list[WeightVersionSpan] | None = Field(
        None, description="In order; together they cover all generated tokens."
    )
    logprob_token_ids: ExplicitLogprobs | None = None
    prompt_logprob_token_ids: PromptExplicitLogprobs | None = None
    kept_logprobs: list[float] | PackedArray | None = Field(
        None,
        description="With `kept_logprob`, for each generated position the log of the mass that "
        "masks and filters left of the vocabulary, at the request's temperature.",
    )
    token_ids: list[int] | None = None
    token_origins: list[Literal["drawn", "accepted", "recovered", "bonus"]] | None = Field(
        None,
        description="With `return_token_origin`, where each generated token came from: a step "
        "without drafts, a draft that was accepted, the place of a refused draft, or after the "
        "last draft where all were accepted.",
    )


PromptLogprobList = list[dict[str, dict[str, Any]] | None]


class DraftMetrics(BaseModel):
    """How many of a request's drafts were accepted, on a server that speculates."""

    num_drafts: int = Field(description="Steps of the engine that verified any draft.")
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_per_position: list[float] = Field(
        description="The share of those steps that accepted the draft at each position."
    )


IgnoredKeywords = Annotated[
    list[str] | None,
    Field(
        description="Where keywords of a JSON schema were that are dropped: unknown formats, and "
        "with `structured_outputs.lenient` or `--lenient-schemas` all that cannot be enforced.",
    ),
]


class QuantizationReply(BaseModel):
    """How far a quantised model is from what it was made of, on a fixed text.

    Figures are null where a logit is no number.
    """

    scheme: str = Field(description="What is rounded, and how.")
    reference: str = Field(description="What was computed without that rounding.")
    mean_kl: float | None = Field(
        description="Mean over the text's positions of KL(reference || served), in nats."
    )
    max_logprob_gap: float | None = Field(
        description="The largest difference between two logprobs of one token, of all tokens."
    )
    text: str = Field(description="Name of the text, and its length.")
