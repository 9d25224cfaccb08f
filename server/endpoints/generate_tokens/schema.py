"""`POST /inference/v1/generate` as clients write it. Null means the default, everywhere."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from server.errors import ClientNames
from server.schema.fields import (
    Accepted,
    NotYet,
    Only,
)
from server.schema.generation import RequestFields, TextFields
from server.schema.ids import TokenIdArray
from server.schema.structured import StructuredOutputs

_OF_PARAMS = (*TextFields.model_fields, "logprobs", "structured_outputs")


class TokenSamplingParams(TextFields):
    """How tokens are drawn, and which logprobs come back, by vLLM's names of its parameters."""

    client_names: ClassVar = ClientNames(
        {name: f"sampling_params.{name}" for name in _OF_PARAMS},
        prompts="token_ids",
        routes_start="sampling_params.routed_experts_prompt_start",
    )

    max_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="A choice has at most this many tokens; by default the rest of the context.",
    )
    logprobs: int | None = Field(
        None,
        ge=-1,
        description="The reply shows the logprob of each generated token and of this many top "
        "tokens beside it; -1 shows all, where --max-logprobs allows as many.",
    )
    structured_outputs: StructuredOutputs | None = Field(
        None, description="The text keeps to a grammar."
    )
    skip_special_tokens: bool | None = Field(
        None, description='With `output_mode` "text": special tokens are left out; default true.'
    )
    spaces_between_special_tokens: bool | None = Field(
        None, description="As in completions; the default is true."
    )
    detokenize: Accepted = None
    output_kind: Accepted = None
    skip_clone: Accepted = None
    flat_logprobs: Annotated[Any, Only(False)] = None
    extra_args: NotYet = None
    thinking_token_budget: NotYet = None
    truncate_prompt_tokens: NotYet = None
    repetition_detection: NotYet = None
    routed_experts_prompt_start: int | None = Field(
        None, ge=0, description="`routed_experts` has no tokens before this one; by default all."
    )


class GenerateTokensRequest(RequestFields):
    """Continue a prompt of token ids."""

    token_ids: TokenIdArray = Field(description="The prompt.")
    sampling_params: TokenSamplingParams = Field(
        default_factory=lambda: TokenSamplingParams.model_validate({}),
        description="How tokens are drawn, and which logprobs come back.",
    )
    output_mode: Literal["tokens", "text"] = Field(
        "tokens", description="What a choice has: token ids, or its text too."
    )
    return_token_ids: bool | None = Field(
        None, description="The reply carries the ids of the prompt."
    )
    return_sampling_mask: bool | None = Field(
        None,
        description="Each choice has `sampling_mask`: for every generated token the ids that "
        "could have been drawn, which `top_k`, `top_p`, `min_p` and masks left. Logprobs are then "
        "those after processing. There may be as many ids as `top_k`, or else the vocabulary: at "
        "most --max-logprobs.",
    )

    return_routed_experts: bool | None = Field(
        None,
        description="Each choice has `routed_experts`: the ids of the experts that every token of "
        "prompt and reply but the last took, by layer, as a `.npy` file in base64, [tokens - 1, "
        "layers, experts taken], zeros in layers without experts. It is so by default on a server "
        "with --enable-return-routed-experts.",
    )
    return_routed_expert_weights: bool | None = Field(
        None,
        description="Each choice has `routed_expert_weights` too, float32 in the same shape.",
    )

    token_offsets: Accepted = None
    reasoning_ended: Annotated[Any, Only(False)] = None
    reasoning_parser_kwargs: Accepted = None
    parse_context: Accepted = None
    features: NotYet = None
    content_parts: NotYet = None
    kv_transfer_params: NotYet = None
    ec_transfer_params: NotYet = None
