"""Replies, as the OpenAPI page describes them; the server writes them without these types."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str = Field(description="In words: the field, its limit and the value.")
    type: str = Field(description='Such as "invalid_request_error" or "server_error".')
    param: str | None = Field(description="The field of the request it is about.")
    code: str | None = Field(description='For programs, such as "context_length_exceeded".')


class ErrorReply(BaseModel):
    """Every error, of every route."""

    error: ErrorBody


class Usage(BaseModel):
    """Tokens in and out; a prompt counts once, whatever `n`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None = Field(
        None, description="`cached_tokens`, with --enable-prompt-tokens-details."
    )


class PackedArray(BaseModel):
    """An array, with `logprobs_format` "packed"."""

    dtype: Literal["<f4", "<f8", "<i4"] = Field(description="As NumPy names it.")
    shape: list[int]
    data: str = Field(description="Base64 of the little-endian values, the last index fastest.")


class PackedValues(BaseModel):
    """Values of the positions from `start` on: the chosen token's, its rank, the top tokens'."""

    start: int
    token_logprobs: PackedArray
    ranks: PackedArray
    top_token_ids: PackedArray
    top_logprobs: PackedArray


class PackedLogprobs(PackedValues):
    """`Logprobs` with `logprobs_format` "packed"."""

    token_ids: PackedArray
    text_offset: PackedArray
    mode: str


class Logprobs(BaseModel):
    """A list item a token, of the echoed prompt first; null where nothing was scored."""

    tokens: list[str] = Field(description="U+FFFD where a token's bytes are not characters.")
    token_logprobs: list[float | None] = Field(description="-inf is -9999.0.")
    top_logprobs: list[dict[str, float] | None] = Field(
        description="The top tokens, the token itself and `logprob_token_ids`, best first. Of "
        'tokens with one text the best has it as its key, others "token_id:N".'
    )
    text_offset: list[int] = Field(description="Where in `text` the token begins, in characters.")
    ranks: list[int | None] = Field(description="1 for the likeliest token.")
    token_ids: list[int]
    top_token_ids: list[list[int] | None] = Field(description="Ids of `top_logprobs`, in order.")
    bytes: list[list[int]] = Field(description="Of each token; joined they are the text's.")
    mode: str = Field(description="`logprobs_mode` of these values.")


class ExplicitLogprobs(BaseModel):
    """A row a generated position, in the order of the ids asked for."""

    token_ids: list[int]
    logprobs: list[list[float]] | PackedArray


class PromptExplicitLogprobs(ExplicitLogprobs):
    """A row a prompt position from `start` on."""

    start: int


class CompletionChoice(BaseModel):
    """One continuation. Optional fields are there when asked for."""

    index: int
    text: str
    logprobs: Logprobs | PackedLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None = Field(description="The stop string or id; null for the EOS.")
    logprob_token_ids: ExplicitLogprobs | None = None
    prompt_logprob_token_ids: PromptExplicitLogprobs | None = None
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] | PackedValues | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class DraftMetrics(BaseModel):
    """What became of the drafts of a request, where the server speculates."""

    num_drafts: int = Field(description="Steps that verified any.")
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_per_position: list[float] = Field(
        description="Share of those steps that kept the draft of each place."
    )


class CompletionReply(BaseModel):
    """Prompt i's choices are i*n .. i*n + n - 1."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
    metrics: DraftMetrics | None = None


class ScoredItem(BaseModel):
    """One item; logprobs are of all continuations, whatever `apply_softmax` says."""

    index: int
    object: Literal["score"]
    score: float = Field(description="Of the first label.")
    label_logprobs: list[float] = Field(description="Of every label; -inf is -9999.0.")
    other_logprob: float = Field(description="Of whatever begins with no label.")


class ScoringUsage(BaseModel):
    """Nothing is generated; a query that comes first counts once."""

    prompt_tokens: int
    completion_tokens: Literal[0]
    total_tokens: int
    prompt_tokens_details: dict[str, int] = Field(description="`cached_tokens` of the query.")


class GenerativeScoringReply(BaseModel):
    """Packed replies have `scores`, `label_logprobs`, `other_logprob` and no `data`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoredItem]
    scores: PackedArray | None = None
    label_logprobs: PackedArray | None = None
    other_logprob: PackedArray | None = None
    usage: ScoringUsage


class ScoreReply(BaseModel):
    """A row an item, a column a label."""

    id: str
    object: Literal["scoring"]
    created: int
    model: str
    scores: list[list[float]] | PackedArray
    label_logprobs: list[list[float]] | PackedArray
    other_logprob: list[float] | PackedArray
    usage: ScoringUsage


class ModelCard(BaseModel):
    """A name the server answers to."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeReply(BaseModel):
    """Ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeReply(BaseModel):
    """Text of ids."""

    prompt: str


class StatusReply(BaseModel):
    """All is well."""

    status: str


class VersionReply(BaseModel):
    """This server's version."""

    version: str
