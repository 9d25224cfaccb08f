"""The configuration of the HTTP side: frozen, made once from the settings of the command."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.arrays import Float32Array
from sampling.params import LogprobsMode


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The values of fields that a request leaves out; neutral unless `--generation-config auto`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 16


PoolingMode = Literal["last", "mean"]
"""Which hidden state represents a text: its last token's, or the mean of all of them."""


Activation = Literal["identity", "tanh", "relu"]


class DenseLayer(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A linear layer on vectors of texts.

    Attributes:
        weight: float32 [out, in].
        bias: float32 [out]; None for none.
        activation: of the sums.
    """

    weight: Float32Array
    bias: Float32Array | None
    activation: Activation


class Pooling(msgspec.Struct, frozen=True):
    """How a model's embeddings are made of its hidden states.

    Attributes:
        normalizes: embeddings have length 1.
        mode: which hidden states.
        layers: what their vector goes through, in order.
        refusal: why there are none; None where there are.
    """

    normalizes: bool = True
    mode: PoolingMode = "last"
    layers: tuple[DenseLayer, ...] = ()
    refusal: str | None = None


class ResponseStoreConfig(msgspec.Struct, frozen=True):
    """Where responses are kept, and how many.

    Attributes:
        path: of the file; empty for one of this process alone, which ends with it.
        max_responses, max_bytes: beyond either, those go that were used least recently.
        max_age_s: seconds after their last use in which responses expire.
    """

    path: str = ""
    max_responses: int = 100_000
    max_bytes: int = 256 << 20
    max_age_s: float = 30 * 86400.0


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration of `create_app`.

    Attributes:
        model_names: names the model answers to; replies carry the first.
        any_model_name: it answers to all others too.
        model_root: folder or hub id, as `/v1/models` shows it.
        api_keys: any of them opens the protected routes; none leaves all open.
        open_metrics: `/metrics` needs no key.
        allowed_origins: origins of pages that may use the server from a browser (CORS).
        allowed_hosts: host names that requests may be addressed to; none allows any.
        max_connections: connections open at once; beyond it idle ones are closed.
        max_body_bytes: a longer request body is a 413.
        max_waiting_requests: choices that may wait for a row; beyond it 429.
        max_prompts: prompts in one request.
        max_choices: `n` of a request.
        max_choices_per_request: prompts times `n` of a request.
        max_reply_values: tokens and logprobs that one reply may hold.
        max_logprobs: top tokens a request may ask for; -1 for no cap.
        logprobs_mode: the mode of requests that name none.
        priority_scheduling: requests may carry a priority.
        stream_interval: tokens between two chunks of a stream.
        request_id_headers: replies carry `X-Request-Id`.
        accepts_unknown_fields: fields of a request that nobody knows have no effect; else a 400.
        prompt_tokens_details: usage reports cached prompt tokens.
        force_include_usage: streams have usage in every chunk and at the end, asked or not.
        tokens_as_token_ids: logprobs name tokens "token_id:N" unless a request says otherwise.
        chat_template: the template of chats in place of the model's own; None for that.
        decision_template: the words in which decisions are asked; None for the built-in ones.
        rerank_template: how documents are ranked, as `Reranker` takes it.
        pooling: how embeddings are made.
        max_scoring_tokens: tokens that the prompts of one request for decisions, a ranking or
            embeddings may have together.
        trust_request_chat_template: requests may bring templates of their own.
        tool_call_parser, reasoning_parser: names of formats of replies; `auto` for what the chat
            template asks for, `none` for none.
        reasoning_field: the name of a message's reasoning.
        lenient_schemas: keywords of JSON schemas that cannot be enforced are dropped.
        exclude_tools_when_none: with `tool_choice` "none" the template shows no tools.
        metrics_prefix: beginning of the names of metrics.
        otlp_traces_endpoint: URL of the collector that traces of requests go to; None for none.
        access_log: each request has a log line.
        access_log_hidden: paths whose requests have none.
        log_requests: the prompt and parameters of each request are logged.
        max_log_len: characters of the prompt in that line.
        defaults: values of sampling fields that a request leaves out.
        weight_updates: routes by which trainers steer the engine are served.
        sleep_mode: the engine's memory can be given back.
        enable_lora: adapters can be loaded, and are models by their names.
        lora_root: the folder that they must be in; None for any.
        page: `/` shows the page.
        verify_command: the program, with arguments, that `/verify` runs; none where it may not.
        flags: the settings that were given, as they are typed, keys left out.
        response_store: where responses are kept; None for nowhere.
        created: when the server began, in Unix seconds.
    """

    model_names: tuple[str, ...]
    model_root: str = ""
    api_keys: tuple[str, ...] = ()
    open_metrics: bool = False
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_connections: int = 1 << 20
    max_body_bytes: int = 32 << 20
    max_waiting_requests: int = 16384
    max_prompts: int = 1024
    max_choices: int = 1024
    max_choices_per_request: int = 4096
    max_reply_values: int = 64 << 20
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    priority_scheduling: bool = False
    stream_interval: int = 1
    request_id_headers: bool = True
    any_model_name: bool = False
    accepts_unknown_fields: bool = False
    prompt_tokens_details: bool = False
    force_include_usage: bool = False
    tokens_as_token_ids: bool = False
    chat_template: str | None = None
    decision_template: str | None = None
    rerank_template: str | None = None
    pooling: Pooling = Pooling()
    max_scoring_tokens: int = 2 << 20
    trust_request_chat_template: bool = False
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    reasoning_field: str = "reasoning_content"
    lenient_schemas: bool = False
    exclude_tools_when_none: bool = False
    metrics_prefix: str = "tailrace_"
    otlp_traces_endpoint: str | None = None
    access_log: bool = True
    access_log_hidden: tuple[str, ...] = ()
    log_requests: bool = False
    max_log_len: int | None = None
    defaults: SamplingDefaults = SamplingDefaults()
    weight_updates: bool = False
    sleep_mode: bool = False
    enable_lora: bool = False
    lora_root: str | None = None
    page: bool = True
    verify_command: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    response_store: ResponseStoreConfig | None = ResponseStoreConfig()
    created: int = 0
