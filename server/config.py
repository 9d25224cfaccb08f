"""What the HTTP side is told: frozen, made once from the command line. Reads no environment."""

from __future__ import annotations

import msgspec

from sampling.params import LogprobsMode


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a request gets for a field it leaves out; neutral unless `--generation-config auto`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 16


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `create_app` is told.

    Attributes:
        model_names: names the model answers to; replies carry the first.
        model_root: folder or hub id, as `/v1/models` shows it.
        api_keys: any of them opens the protected routes; none leaves all open.
        open_metrics: `/metrics` needs no key.
        allowed_origins: of browsers (CORS); none sends no CORS headers.
        max_body_bytes: a longer request body is a 413.
        max_waiting_requests: prompts that may wait for a row; beyond it 429.
        max_prompts: prompts in one request.
        max_choices: `n` of a request.
        max_logprobs: top tokens a request may ask for; -1 for no cap.
        logprobs_mode: of requests that name none.
        priority_scheduling: requests may carry a priority.
        stream_interval: tokens between two chunks of a stream.
        request_id_headers: replies carry `X-Request-Id`.
        prompt_tokens_details: usage tells cached prompt tokens.
        force_include_usage: streams end with usage, asked or not.
        tokens_as_token_ids: logprobs name tokens "token_id:N" unless a request says otherwise.
        log_requests: one log line a request.
        max_log_len: characters of the prompt in that line.
        seed: makes the seeds drawn for requests without one a reproducible sequence.
        defaults: of sampling fields.
        fingerprint: `system_fingerprint` of replies.
    """

    model_names: tuple[str, ...]
    model_root: str = ""
    api_keys: tuple[str, ...] = ()
    open_metrics: bool = False
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 32 << 20
    max_waiting_requests: int = 16384
    max_prompts: int = 1024
    max_choices: int = 1024
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    priority_scheduling: bool = False
    stream_interval: int = 1
    request_id_headers: bool = False
    prompt_tokens_details: bool = False
    force_include_usage: bool = False
    tokens_as_token_ids: bool = False
    log_requests: bool = False
    max_log_len: int | None = None
    seed: int | None = None
    defaults: SamplingDefaults = SamplingDefaults()
    fingerprint: str = "tailrace"
