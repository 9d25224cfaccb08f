"""`POST /v1/completions` as clients write it. Null means the default, everywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sampling.params import MAX_LOGPROB_TOKEN_IDS
from server.schema.base import WireModel
from server.schema.fields import (
    MAX_ALLOWED_IDS,
    MAX_BAD_WORDS,
    MAX_STOP_TOKEN_IDS,
    Accepted,
    LogitBias,
    Mode,
    ModelName,
    NotYet,
    Only,
    PackedFormat,
    Priority,
    RequestId,
    Seed,
    StopField,
    StopString,
    StreamOptions,
)
from server.schema.ids import TokenId
from server.schema.prompts import PromptField

AllowedIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_IDS)]
ExplicitIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS)]


class SamplingFields(WireModel):
    """How tokens are drawn and when a choice ends."""

    max_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="Tokens generated at most, 16 by default. 0 generates and bills nothing: "
        "with `echo` or `logprob_token_ids` it scores.",
    )
    n: int | None = Field(None, ge=1, description="Choices per prompt, 1 by default.")
    temperature: float | None = Field(
        None, ge=0, description="Divides the logits; 1 by default. 0 is greedy."
    )
    top_p: float | None = Field(
        None, gt=0, le=1, description="Keep the likeliest tokens that reach this mass; 1 keeps all."
    )
    top_k: int | None = Field(
        None, ge=-1, le=2**31 - 1, description="Keep the k likeliest tokens; 0 and -1 keep all."
    )
    min_p: float | None = Field(
        None, ge=0, le=1, description="Keep tokens at least this fraction as likely as the best."
    )
    repetition_penalty: float | None = Field(
        None,
        ge=1e-6,
        le=1e6,
        description="Divides positive logits of tokens seen; 1 by default.",
    )
    presence_penalty: float | None = Field(
        None, ge=-2, le=2, description="Subtracted from logits of tokens generated; 0 by default."
    )
    frequency_penalty: float | None = Field(
        None, ge=-2, le=2, description="Subtracted once per occurrence in the output; 0 by default."
    )
    seed: Seed | None = Field(None, description="Of the noise; -1 and null draw one.")
    stop: StopField | None = Field(
        None, description="Texts that end a choice; the text before the first one is returned."
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = Field(
        None, description="Ids that end a choice, besides the model's own end of text."
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="Keep the stop string, or the stop token's text, in the text."
    )
    ignore_eos: bool | None = Field(None, description="Go on after the model's end of text.")
    min_tokens: int | None = Field(
        None, ge=0, le=2**31 - 1, description="No end of text or stop string before so many tokens."
    )
    logit_bias: LogitBias | None = Field(
        None, description="Token id (as a string) to what is added to its logit, in [-100, 100]."
    )
    allowed_token_ids: AllowedIds | None = Field(
        None, description="The only ids that may be drawn."
    )
    bad_words: Annotated[list[StopString], Field(max_length=MAX_BAD_WORDS)] | None = Field(
        None, description="Never generated, alone or after a space; leading white space is cut."
    )


class LogprobFields(WireModel):
    """Which log-probabilities come back, and of what."""

    logprobs: int | None = Field(
        None,
        ge=-1,
        description="Top tokens reported beside each chosen one; -1 for all where the server has "
        "no cap (--max-logprobs -1).",
    )
    logprobs_mode: Mode | None = Field(
        None, description="Which values: before or after processing, logits or log-probabilities."
    )
    logprob_token_ids: ExplicitIds | None = Field(
        None, description="Ids whose values are reported at every generated position."
    )
    prompt_logprobs: int | None = Field(
        None, ge=-1, description="Top tokens reported beside each token of the prompt."
    )
    prompt_logprob_token_ids: ExplicitIds | None = Field(
        None, description="Ids whose values are reported at every prompt position."
    )
    prompt_logprob_start: int | None = Field(
        None, ge=0, description="First prompt position that is scored; 1 by default."
    )
    logprobs_format: PackedFormat | None = Field(
        None, description='"packed": base64 of little-endian arrays instead of lists.'
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description='Name tokens "token_id:N" in logprobs.'
    )
    return_token_ids: bool | None = Field(
        None, description="Return the ids of the prompt and of each choice."
    )


class CompletionRequest(SamplingFields, LogprobFields):
    """Continue each prompt."""

    model: ModelName | None = Field(None, description="A name of `/v1/models`.")
    prompt: PromptField = Field(
        description="A string, a list of strings, a list of token ids, or a list of such lists."
    )
    echo: bool | None = Field(None, description="Return the prompt in front of the text.")
    best_of: int | None = Field(None, ge=1, description="Null or `n`: nothing is left out.")
    stream: bool | None = Field(None, description="Send the reply as server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    stream_interval: int | None = Field(
        None, ge=1, le=2**31 - 1, description="Tokens between two chunks; raises the server's only."
    )
    add_special_tokens: bool | None = Field(
        None, description="Let the tokenizer add its beginning of text; true by default."
    )
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        le=2**31 - 1,
        description="Keep so many tokens of a longer prompt; -1 keeps what the context holds "
        "besides `max_tokens`.",
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="Which side of a longer prompt is dropped; left by default."
    )
    skip_special_tokens: bool | None = Field(
        None, description="Leave special tokens out of the text; true by default."
    )
    spaces_between_special_tokens: bool | None = Field(
        None, description="Where the tokenizer writes spaces between special tokens, keep them."
    )
    priority: Priority = None
    request_id: RequestId = None
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="Only requests of equal salt share cached prefixes.",
    )

    user: Accepted = None
    session_id: Accepted = None
    metadata: Accepted = None
    store: Accepted = None
    service_tier: Accepted = None
    safety_identifier: Accepted = None
    prompt_cache_key: Accepted = None
    prompt_cache_retention: Accepted = None

    suffix: NotYet = None
    prompt_embeds: NotYet = None
    use_beam_search: Annotated[Any, Only(False)] = None
    length_penalty: Annotated[Any, Only(1.0, 1)] = None
    response_format: Annotated[Any, Only({"type": "text"})] = None
    structured_outputs: NotYet = None
    kv_transfer_params: NotYet = None
    ec_transfer_params: NotYet = None
    vllm_xargs: NotYet = None
    repetition_detection: NotYet = None
    thinking_token_budget: NotYet = None
    watermarking: NotYet = None
    routed_experts_prompt_start: NotYet = None
    return_token_offsets: Annotated[Any, Only(False)] = None
    return_mm_kwargs: Annotated[Any, Only(False)] = None
