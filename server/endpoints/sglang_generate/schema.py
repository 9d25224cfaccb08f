"""`POST /generate` as SGLang's clients write it. Null means the default, everywhere."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from server.generation.prompt_field import PromptField
from server.schema.base import BodyModel
from server.schema.fields import (
    Accepted,
    LogitBias,
    Mode,
    NotYet,
    Only,
    Priority,
    Seed,
    StopField,
    list_or,
)
from server.schema.generation import ExplicitIds, StopTokenIds


class GenerateParams(BodyModel):
    """How tokens are drawn, by SGLang's names."""

    max_new_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="A choice has at most this many tokens; the default is 128. With 0 nothing is "
        "generated.",
    )
    min_new_tokens: int | None = Field(
        None, ge=0, le=2**31 - 1, description="No choice ends before it has this many tokens."
    )
    n: int | None = Field(None, ge=1, description="Each prompt gets this many choices.")
    temperature: float | None = Field(None, ge=0, description="The default is 1.")
    top_p: float | None = Field(None, gt=0, le=1, description="The default is 1, which keeps all.")
    top_k: int | None = Field(
        None, ge=-1, le=2**31 - 1, description="The default is -1, which keeps all."
    )
    min_p: float | None = Field(None, ge=0, le=1, description="The default is 0.")
    repetition_penalty: float | None = Field(None, ge=1e-6, le=1e6, description="Default 1.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="The default is 0.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="The default is 0.")
    sampling_seed: Seed | None = Field(
        None, description="Requests with equal seeds draw equal tokens."
    )
    stop: StopField | None = Field(None, description="Texts that end a choice.")
    stop_token_ids: StopTokenIds | None = Field(None, description="Ids that end a choice.")
    ignore_eos: bool | None = Field(
        None, description="The choice goes on after the model's end of text."
    )
    no_stop_trim: bool | None = Field(None, description="The text keeps the stop string.")
    skip_special_tokens: bool | None = Field(
        None, description="Special tokens are left out of the text; the default is true."
    )
    spaces_between_special_tokens: bool | None = Field(
        None, description="Spaces between special tokens are kept; the default is true."
    )
    logit_bias: LogitBias | None = Field(None, description="Numbers added to logits, by id.")
    json_schema: str | None = Field(None, description="The text is JSON of this schema.")
    regex: str | None = Field(None, description="The text matches this expression.")
    ebnf: str | None = Field(None, description="The text keeps to this grammar.")
    stream_interval: int | None = Field(
        None, ge=1, le=2**31 - 1, description="Tokens between two chunks of a stream."
    )
    stop_regex: NotYet = None
    structural_tag: NotYet = None
    custom_params: NotYet = None

    @property
    def seed(self) -> int | None:
        """The seed, by the name that parameters have."""
        return self.sampling_seed

    @property
    def min_tokens(self) -> int | None:
        """The least number of tokens, likewise."""
        return self.min_new_tokens


class GenerateRequest(BodyModel):
    """Continue one or many prompts, of text or of token ids."""

    text: PromptField | None = Field(None, description="A text or several.")
    input_ids: PromptField | None = Field(None, description="Token ids, or several lists of them.")
    sampling_params: (
        Annotated[
            GenerateParams | list[GenerateParams], list_or(GenerateParams, list[GenerateParams])
        ]
        | None
    ) = Field(None, description="How tokens are drawn; a list must hold the same for every prompt.")
    rid: Annotated[str | list[str], list_or(str, list[str])] | None = Field(
        None,
        description="Names the requests, by which they may be aborted: a list has a name for each "
        "prompt.",
    )
    return_logprob: Annotated[bool | list[bool], list_or(bool, list[bool])] | None = Field(
        None, description="The reply shows the logprob of each generated token."
    )
    logprob_start_len: int | None = Field(
        None,
        ge=-1,
        description="With `return_logprob`: tokens of the prompt from this position on are shown "
        "too, the first of them without a value; -1, the default, shows none.",
    )
    top_logprobs_num: int | None = Field(
        None, ge=0, description="With `return_logprob`: so many top tokens are shown."
    )
    token_ids_logprob: ExplicitIds | None = Field(
        None, description="With `return_logprob`: the values of these ids are shown."
    )
    return_text_in_logprobs: bool | None = Field(
        None, description="Logprobs show the texts of tokens."
    )
    logprobs_mode: Mode | None = Field(
        None, description="Which values are shown; the default is the server's --logprobs-mode."
    )
    return_sampling_mask: bool | None = Field(
        None,
        description="`meta_info.sampling_mask` has the ids that could have been drawn at each "
        "position; see `/inference/v1/generate`.",
    )
    return_routed_experts: bool | None = Field(
        None,
        description="`meta_info.routed_experts` has the ids of the experts that every token of "
        "prompt and reply but the last took, by layer: int32 in base64, [tokens - 1, layers * "
        "experts taken], zeros in layers without experts. It needs a server with "
        "--enable-return-routed-experts.",
    )
    return_routed_expert_weights: bool | None = Field(
        None,
        description="`meta_info.routed_expert_weights` has their weights, float32 in the same "
        "shape.",
    )
    routed_experts_start_len: int | None = Field(
        None, ge=0, description="Routed experts have no tokens before this one; by default all."
    )
    stream: bool | None = Field(
        None, description="Server-sent events, each with all that there is so far."
    )
    priority: Priority = None
    extra_key: str | None = Field(
        None, max_length=1024, description="Only requests of equal keys share cached prefixes."
    )

    log_metrics: Accepted = None
    session_id: Accepted = None
    conversation_id: Accepted = None
    routing_key: Accepted = None
    background: Annotated[Any, Only(False)] = None
    return_hidden_states: Annotated[Any, Only(False)] = None
    sampling_logprobs_mode: Annotated[Any, Only("selected")] = None
    return_flat_raw_top_logprobs: Annotated[Any, Only(False)] = None
    return_flat_raw_output_top_logprobs: Annotated[Any, Only(False)] = None
    return_flat_raw_top_logprobs_b64: Annotated[Any, Only(False)] = None
    input_embeds: NotYet = None
    image_data: NotYet = None
    video_data: NotYet = None
    audio_data: NotYet = None
    modalities: NotYet = None
    session_params: NotYet = None
    lora_path: str | None = Field(
        None, max_length=256, description="The name of a LoRA adapter that is loaded."
    )
    custom_logit_processor: NotYet = None
    max_thinking_tokens: NotYet = None
