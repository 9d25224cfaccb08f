"""The settings of the HTTP side, with their limits and their help, as in `engine_settings`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from engine.logs import LogFormat
from server.command.values import Count, LogLevel, ReasoningParser, Several, ToolCallParser
from server.generation.prompt_field import MAX_PROMPTS


class HttpSettings(BaseModel):
    """Where the server listens and how it replies."""

    TITLE: ClassVar = "HTTP"

    host: str = Field(
        "127.0.0.1",
        description="The address to listen on. 127.0.0.1 is this machine alone, 0.0.0.0 all of its "
        "addresses.",
    )
    port: int = Field(
        8000, ge=0, le=65535, description="The port to listen on. 0 takes a free one."
    )
    uds: str | None = Field(
        None, description="The path of a Unix socket to listen on, instead of a port."
    )
    api_server_count: int | None = Field(
        None,
        ge=1,
        le=64,
        description="The number of processes that answer requests, over one engine and one port. "
        "By default one to every four cores, at least one and at most four.",
    )
    root_path: str = Field(
        "", description="The path under which a proxy shows the server, which the proxy removes."
    )
    stream_interval: int = Field(
        1, ge=1, description="The number of tokens between two chunks of a stream."
    )
    allow_any_model_name: bool = Field(
        False,
        description="Answer to every name of a model, for clients that have one built in.",
    )
    enable_request_id_headers: bool = Field(True, description="Send X-Request-Id with every reply.")
    unknown_fields: Literal["refuse", "ignore"] = Field(
        "refuse",
        description="What becomes of fields of a request that no server is known to have: a "
        "400, or no effect. Those without effect are named in the reply's X-Ignored-Fields.",
    )
    enable_prompt_tokens_details: bool = Field(
        False, description="Tell in `usage` how many prompt tokens came from the KV cache."
    )
    enable_force_include_usage: bool = Field(
        False,
        description="Send `usage` with every chunk of a stream and at its end, asked for or not.",
    )
    return_tokens_as_token_ids: bool = Field(
        False, description='Name tokens "token_id:N" in log-probabilities.'
    )
    shutdown_timeout: float = Field(
        30.0, ge=0, description="The seconds that open requests may take after SIGTERM or Ctrl-C."
    )
    page: bool = Field(True, description="Show the page at /.")
    page_verify: bool = Field(
        False,
        description="Let the page run `tailrace verify --quick` on this machine, beside what is "
        "served.",
    )
    metrics_prefix: str = Field(
        "tailrace_",
        pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$",
        description='What the names of metrics begin with. "vllm:" gives them the names that '
        "dashboards for vLLM ask for.",
    )


class ChatSettings(BaseModel):
    """How replies to chats are taken apart."""

    TITLE: ClassVar = "tools and reasoning"

    tool_call_parser: ToolCallParser = Field(
        "auto",
        description="The format in which the model writes tool calls. auto is the one that the "
        "chat template shows; none leaves calls in the content.",
    )
    reasoning_parser: ReasoningParser = Field(
        "auto",
        description="The format in which the model writes its reasoning. auto is the one that the "
        "chat template shows; none leaves the reasoning in the content.",
    )
    reasoning_field: Literal["reasoning_content", "reasoning"] = Field(
        "reasoning_content",
        description="The name of a message's reasoning in replies. Both are read in requests.",
    )
    lenient_schemas: bool = Field(
        False,
        description="Drop the keywords of JSON schemas that cannot be enforced, in every request "
        "as structured_outputs.lenient does in one; ignored_keywords names them.",
    )
    exclude_tools_when_tool_choice_none: bool = Field(
        False,
        description='With tool_choice "none" the chat template shows no tools. By default it does, '
        "so that the prompt keeps its cached prefix; calls are left out of the reply.",
    )


class ResponseStoreSettings(BaseModel):
    """Where responses of /v1/responses are kept, and how many."""

    TITLE: ClassVar = "stored responses"

    response_store: str | None = Field(
        None,
        description="The file that keeps responses, over restarts too. By default they are kept "
        "until the server ends; none keeps none.",
    )
    response_store_max_responses: Count = Field(
        100_000,
        ge=1,
        description="The most responses kept; beyond it those go that were used least recently.",
    )
    response_store_max_bytes: Count = Field(
        256 << 20, ge=1 << 20, description="The most bytes of responses kept, likewise."
    )
    response_store_max_days: float = Field(
        30.0, gt=0, description="The days after its last use in which a response expires."
    )


class LimitSettings(BaseModel):
    """What one request, or all of them, may take."""

    TITLE: ClassVar = "limits"

    max_waiting_requests: Count = Field(
        16384, ge=0, description="The most choices that may wait. Beyond it requests get a 429."
    )
    max_completion_prompts: Count = Field(
        1024, ge=1, le=MAX_PROMPTS, description="The most prompts of a request."
    )
    max_n_sequences: Count = Field(1024, ge=1, description="The largest `n` of a request.")
    max_choices_per_request: Count = Field(
        4096, ge=1, description="The most choices of a request, which are its prompts times `n`."
    )
    max_scoring_tokens: Count = Field(
        2 << 20,
        ge=1,
        description="The most tokens that the prompts of one request for decisions, a ranking or "
        "embeddings may have together.",
    )
    max_reply_values: Count = Field(
        64 << 20, ge=1, description="The most tokens and log-probabilities in one reply."
    )
    max_body_bytes: Count = Field(
        32 << 20, ge=1024, description="The longest body of a request, in bytes. Beyond it: 413."
    )
    header_timeout: float = Field(
        10.0,
        gt=0,
        description="The seconds that a client may take to send the headers of a request, and "
        "before that for the handshake of TLS.",
    )


class SecuritySettings(BaseModel):
    """Who may use the server."""

    TITLE: ClassVar = "security"

    api_key: Several = Field(
        [],
        description="The keys of which clients need one. By default none is needed.",
    )
    open_metrics: bool = Field(False, description="Let /metrics be read without a key.")
    allowed_hosts: Several = Field(
        [],
        description="The host names that requests may be addressed to; * allows any. By default "
        "those of this machine where the server listens on a loopback address, else any.",
    )
    allowed_origins: Several = Field(
        [],
        description="The origins of web pages that may use the server, such as "
        "https://chat.example; * allows any. By default no page of another origin may.",
    )
    trust_request_chat_template: bool = Field(
        False, description="Let chat requests bring templates of their own."
    )
    ssl_certfile: Path | None = Field(None, description="The file of the TLS certificate.")
    ssl_keyfile: Path | None = Field(None, description="The file of the certificate's key.")
    ssl_ca_certs: Path | None = Field(
        None, description="The file of the authorities that sign certificates of clients."
    )
    ssl_cert_reqs: int = Field(
        0,
        ge=0,
        le=2,
        description="Whether clients need a certificate: 0 for no, 1 if they have one, 2 for yes.",
    )


class RolloutSettings(BaseModel):
    """What trainers may do to a running server."""

    TITLE: ClassVar = "rollouts"

    enable_weight_updates: bool = Field(
        False,
        description="Serve the routes by which trainers pause the engine and change its weights. "
        "They need a key where there are keys.",
    )
    enable_return_routed_experts: bool = Field(
        False,
        description="Keep which experts each token takes, so that /inference/v1/generate and "
        "/generate can report them. The KV cache holds fewer tokens then: it takes 8 bytes more "
        "for each expert that a token takes in a layer.",
    )
    enable_sleep_mode: bool = Field(
        False,
        description="Let /sleep and /release_memory_occupation give the memory of weights and KV "
        "cache back, until it is taken again.",
    )


class LogSettings(BaseModel):
    """What is logged, to standard error."""

    TITLE: ClassVar = "logging"

    log_level: LogLevel = Field("info", description="The least level of a line to be written.")
    log_format: LogFormat = Field(
        "text", description="What a line looks like: text, or a JSON object."
    )
    uvicorn_log_level: LogLevel | None = Field(
        None, description="The same as --log-level, for lines about connections alone."
    )
    disable_uvicorn_access_log: bool = Field(False, description="Write no line for each request.")
    disable_access_log_for_endpoints: Several = Field(
        [], description="The paths whose requests get no line, such as /health."
    )
    enable_log_requests: bool = Field(
        False, description="Write the prompt and the parameters of each request."
    )
    max_log_len: int | None = Field(
        None, ge=0, description="The most characters of a prompt to write. By default all of it."
    )


class TraceSettings(BaseModel):
    """Where traces of requests go."""

    TITLE: ClassVar = "traces"

    otlp_traces_endpoint: str | None = Field(
        None,
        description="The URL of an OpenTelemetry collector that takes OTLP over HTTP, such as "
        "http://localhost:4318/v1/traces. Every request that generates or scores becomes a trace.",
    )


class FileSettings(BaseModel):
    """Where settings come from."""

    TITLE: ClassVar = "settings"

    config: Path | None = Field(
        None, description="A YAML file of these settings. Flags and variables go before it."
    )
