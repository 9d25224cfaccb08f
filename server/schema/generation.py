"""Fields that completions and chats share: sampling, logprobs, streams. Null means the default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import FailFast, Field, PlainValidator

from engine.arrays import Int32Array
from sampling.params import MAX_LOGPROB_TOKEN_IDS
from server.schema.base import BodyModel
from server.schema.fields import (
    MAX_ALLOWED_IDS,
    MAX_BAD_WORDS,
    MAX_STOP_TOKEN_IDS,
    Accepted,
    Instead,
    LogitBias,
    Mode,
    ModelName,
    NotYet,
    Only,
    PackedDtype,
    PackedFormat,
    Priority,
    RequestId,
    Seed,
    StopField,
    StopString,
    StreamOptions,
)
from server.schema.ids import ID_MAX, TokenId, prompt_ids
from server.schema.structured import ResponseFormatField, StructuredOutputs

AllowedIds = Annotated[
    list[TokenId] | None, FailFast(), Field(min_length=1, max_length=MAX_ALLOWED_IDS)
]
"""Only the first bad id is reported: an error of each of so many would take long to make."""
ExplicitIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS)]
PromptIds = Annotated[
    Int32Array,
    PlainValidator(
        prompt_ids,
        json_schema_input_type=list[TokenId] | list[list[Annotated[int, Field(ge=-1, le=ID_MAX)]]],
    ),
]
BadWords = Annotated[list[StopString], Field(max_length=MAX_BAD_WORDS)]
StopTokenIds = Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)]


class SamplingFields(BodyModel):
    """How tokens are drawn and when a choice ends."""

    max_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="A choice has at most this many tokens; the default is 16. With 0 nothing is "
        "generated or billed: use it with `echo` or `logprob_token_ids` to get logprobs alone.",
    )
    n: int | None = Field(
        None, ge=1, description="Each prompt gets this many choices; the default is 1."
    )
    temperature: float | None = Field(
        None,
        ge=0,
        description="The logits are divided by this number; the default is 1. With 0 the likeliest "
        "token is always taken.",
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Only the likeliest tokens whose probabilities add up to this number are kept; "
        "1, the default, keeps all.",
    )
    top_k: int | None = Field(
        None,
        ge=-1,
        le=2**31 - 1,
        description="Only this many of the likeliest tokens are kept; 0, the default, and -1 keep "
        "all.",
    )
    min_p: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Only tokens at least this fraction as likely as the likeliest one are kept; "
        "0, the default, keeps all.",
    )
    repetition_penalty: float | None = Field(
        None,
        ge=1e-6,
        le=1e6,
        description="Logits of tokens in the prompt or the output are divided by this number where "
        "positive and multiplied by it where negative; the default is 1.",
    )
    presence_penalty: float | None = Field(
        None,
        ge=-2,
        le=2,
        description="This number is subtracted from the logits of tokens already generated; the "
        "default is 0.",
    )
    frequency_penalty: float | None = Field(
        None,
        ge=-2,
        le=2,
        description="This number is subtracted from a token's logit once for each time it was "
        "generated; the default is 0.",
    )
    seed: Seed | None = Field(
        None,
        description="Requests with equal seeds draw equal tokens; -1 and null draw a new seed.",
    )
    stop: StopField | None = Field(
        None,
        description="A choice ends before the first of these texts that it completes.",
    )
    stop_token_ids: StopTokenIds | None = Field(
        None, description="These ids end a choice, as the model's own end of text does."
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="The text keeps the stop string or the stop token's text at its end."
    )
    ignore_eos: bool | None = Field(
        None, description="The choice goes on after the model's end of text."
    )
    min_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="No end of text, stop id or stop string ends a choice before it has this many "
        "tokens.",
    )
    logit_bias: LogitBias | None = Field(
        None,
        description="Maps token ids (as strings, each once) to numbers in [-100, 100] that are "
        "added to their logits.",
    )
    allowed_token_ids: AllowedIds = Field(None, description="Only these ids may be drawn.")
    bad_words: BadWords | None = Field(
        None,
        description="These words are never generated, neither alone nor after a space; white space "
        "at their beginning does not count.",
    )


class LogprobFields(BodyModel):
    """Which log-probabilities come back, and of which tokens.

    Attributes:
        echoes_prompt: the prompt's tokens are shown among the generated ones.
        sends_prompt_parts: what is reported of the prompt is wanted as it is computed, by part.
    """

    @property
    def echoes_prompt(self) -> bool:
        return False

    @property
    def sends_prompt_parts(self) -> bool:
        return False

    logprobs_mode: Mode | None = Field(
        None,
        description="Which values are shown: those before or after processing, logits or "
        "log-probabilities. The default is the server's --logprobs-mode.",
    )
    logprob_token_ids: ExplicitIds | None = Field(
        None, description="The reply shows the values of these ids at every generated position."
    )
    kept_logprob: bool | None = Field(
        None,
        description="The reply shows, for each generated token, the log of the mass that masks, "
        "grammars and filters left of the vocabulary: 0 where nothing was cut.",
    )
    prompt_logprobs: int | None = Field(
        None,
        ge=-1,
        description="The reply shows the logprob of each token of the prompt and of this many top "
        "tokens beside it.",
    )
    prompt_logprob_token_ids: PromptIds | None = Field(
        None,
        description="The reply shows the values of these ids at every prompt position; or, of a "
        "list of lists, those of each list at its position, from `prompt_logprob_start` on; -1 "
        "pads.",
    )
    prompt_logprob_start: int | None = Field(
        None,
        ge=0,
        description="Logprobs of the prompt begin at this position; the default is 1, since "
        "nothing precedes the first token.",
    )
    logprobs_format: PackedFormat | None = Field(
        None,
        description='With "packed", values are base64 of little-endian arrays instead of lists.',
    )
    logprobs_dtype: PackedDtype | None = Field(
        None, description="What packed values are rounded to; the default is float32."
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description='Logprobs name tokens "token_id:N" instead of by their texts.'
    )
    return_token_ids: bool | None = Field(
        None, description="The reply carries the ids of the prompt and of each choice."
    )
    return_token_origin: bool | None = Field(
        None,
        description="The reply says where each generated token came from: whether it was drawn "
        "without drafts, an accepted draft, recovered in place of a refused one, or the bonus "
        "after the last.",
    )


class TextFields(SamplingFields, LogprobFields):
    """The same, and how the text is written.

    Attributes:
        token_limit: the limit of the reply's tokens; None for none that the client named.
    """

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens

    skip_special_tokens: bool | None = Field(
        None, description="Special tokens are left out of the text; the default is true."
    )
    spaces_between_special_tokens: bool | None = Field(
        None,
        description="Spaces that the tokenizer writes between special tokens are kept; the default "
        "is true.",
    )


class RequestFields(BodyModel):
    """The model that replies, in which order, and whether as a stream."""

    model: ModelName | None = Field(
        None, description="One of the names that `/v1/models` lists; the default is the first."
    )
    stream: bool | None = Field(None, description="The reply is sent as server-sent events.")
    stream_options: StreamOptions | None = Field(
        None, description="Options of a stream; they need `stream`."
    )
    priority: Priority = None
    request_id: RequestId = None
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="Only requests of equal salt share cached prefixes.",
    )


class GenerationFields(TextFields, RequestFields):
    """What completions and chats have in common besides.

    Attributes:
        num_top: the top tokens that are shown at each generated position; None for no logprobs.
    """

    @property
    def num_top(self) -> int | None:
        raise NotImplementedError

    stream_interval: int | None = Field(
        None,
        ge=1,
        le=2**31 - 1,
        description="Chunks are at least this many tokens apart; a number below the server's "
        "--stream-interval has no effect.",
    )
    response_format: ResponseFormatField | None = Field(
        None, description="The text is JSON, of any kind or of a schema."
    )
    structured_outputs: StructuredOutputs | None = Field(
        None, description="The text keeps to a grammar."
    )
    return_weight_versions: bool | None = Field(
        None,
        description="The reply says which version of the weights drew which of its tokens, for "
        "servers whose weights are updated.",
    )
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        le=2**31 - 1,
        description="A longer prompt is cut to this many tokens; -1 keeps as many as the context "
        "holds besides `max_tokens`. By default nothing is cut.",
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="The side on which a longer prompt is cut; the default is left."
    )

    user: Accepted = None
    session_id: Accepted = None
    metadata: Accepted = None
    store: Accepted = None
    service_tier: Accepted = None
    safety_identifier: Accepted = None
    prompt_cache_key: Accepted = None
    prompt_cache_retention: Accepted = None

    guided_json: Annotated[Any, Instead("structured_outputs.json")] = None
    guided_regex: Annotated[Any, Instead("structured_outputs.regex")] = None
    guided_choice: Annotated[Any, Instead("structured_outputs.choice")] = None
    guided_grammar: Annotated[Any, Instead("structured_outputs.grammar")] = None
    guided_json_object: Annotated[Any, Instead("structured_outputs.json_object")] = None
    guided_whitespace_pattern: Annotated[Any, Instead("structured_outputs.whitespace_pattern")] = (
        None
    )
    guided_decoding_backend: Annotated[Any, Instead("structured_outputs")] = None
    structural_tag: Annotated[Any, Instead("structured_outputs.structural_tag")] = None

    use_beam_search: Annotated[Any, Only(False)] = None
    length_penalty: Annotated[Any, Only(1.0, 1)] = None
    kv_transfer_params: NotYet = None
    ec_transfer_params: NotYet = None
    vllm_xargs: NotYet = None
    repetition_detection: NotYet = None
    return_mm_kwargs: Annotated[Any, Only(False)] = None
    return_token_offsets: Annotated[Any, Only(False)] = None
    watermarking: NotYet = None
    routed_experts_prompt_start: NotYet = None
