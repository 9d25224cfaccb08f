"""A completion request made ready: prompts as ids, parameters checked, the reply's form known."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial

import msgspec

from engine.config import EngineInfo
from engine.request import PromptLogprobsParams
from sampling.params import SamplingParams
from server.completions.params import num_top, prompt_logprobs_params, sampling_params
from server.completions.prompts import Prompt, prepare_prompts
from server.config import ServerConfig
from server.errors import ApiError, bad_request
from server.schema.completions import CompletionRequest
from server.schema.fields import StreamOptions
from server.text.tokenizer import Tokenizer

INLINE_BAD_WORDS, INLINE_IDS = 16, 4096
NON_STREAM_INTERVAL, STOP_STRING_INTERVAL = 32, 4


class ReplyForm(msgspec.Struct, frozen=True):
    """What the reply carries.

    Attributes:
        num_top: of generated tokens' logprobs; None for no `logprobs` object.
        explicit_ids: reported per generated position beside `logprobs`.
        num_prompt_top: of `prompt_logprobs`; None for none.
        prompt_explicit_ids: reported per prompt position.
        prompt_logprobs: what the engine reports of the prompt, for `echo` too.
        next_token_only: nothing is generated; the next token's scores come from a token drawn
            and dropped.
        silent_ends: ids that end a choice with a null `stop_reason`.
        packed: values go as arrays in base64.
    """

    stream: bool
    echo: bool
    stops: tuple[str, ...]
    include_stop: bool
    min_tokens: int
    num_top: int | None
    explicit_ids: tuple[int, ...] | None
    num_prompt_top: int | None
    prompt_explicit_ids: tuple[int, ...] | None
    prompt_logprobs: PromptLogprobsParams | None
    mode: str
    tokens_as_ids: bool
    return_token_ids: bool
    skip_special_tokens: bool
    spaces_between: bool
    next_token_only: bool
    silent_ends: frozenset[int]
    packed: bool

    @property
    def eager(self) -> bool:
        """Whether text is wanted as tokens come, not only at the end."""
        return self.stream or bool(self.stops)

    @property
    def per_token(self) -> bool:
        """Whether it matters where in the text each token begins."""
        return self.num_top is not None or bool(self.stops)

    @property
    def shows_logprobs(self) -> bool:
        """Whether values of generated positions are reported."""
        return self.num_top is not None or self.explicit_ids is not None

    @property
    def shows_tokens(self) -> bool:
        """Whether a chunk without text has something to tell."""
        return self.shows_logprobs or self.return_token_ids

    @property
    def shows_prompt(self) -> bool:
        """Whether the first piece carries something of the prompt."""
        return self.echo or self.prompt_logprobs is not None or self.return_token_ids


class Job(msgspec.Struct, frozen=True):
    """Everything known before the engine is asked.

    Attributes:
        emit_interval: tokens between two reports of the engine.
        usage_at_end: a stream ends with a chunk of usage.
        usage_always: every chunk of a stream carries usage.
        usage_cached: usage tells cached prompt tokens.
    """

    reply_id: str
    created: int
    model: str
    fingerprint: str
    prompts: list[Prompt]
    params: SamplingParams
    form: ReplyForm
    n: int
    priority: int
    cache_salt: str
    emit_interval: int
    usage_at_end: bool
    usage_always: bool
    usage_cached: bool


async def make_job(
    wire: CompletionRequest,
    *,
    config: ServerConfig,
    info: EngineInfo,
    tokenizer: Tokenizer,
    request_id: str | None = None,
    drawn_seed: int | None = None,
) -> Job:
    """Check and convert a request; raises `ApiError` for what cannot be served."""
    check_model(wire.model, config)
    _check_combinations(wire, config)
    make_params = partial(
        sampling_params, wire, config=config, info=info, tokenizer=tokenizer, drawn_seed=drawn_seed
    )
    params = await asyncio.to_thread(make_params) if _is_long(wire) else make_params()
    form = _reply_form(wire, params, config, info)
    prompts = await prepare_prompts(
        wire, default_max_tokens=config.defaults.max_tokens, info=info, tokenizer=tokenizer
    )
    _check_prompts(wire, prompts, form)
    options = wire.stream_options or StreamOptions()
    return Job(
        reply_id=f"cmpl-{wire.request_id or request_id or secrets.token_hex(16)}",
        created=int(time.time()),
        model=wire.model or config.model_names[0],
        fingerprint=config.fingerprint,
        prompts=prompts,
        params=params,
        form=form,
        n=wire.n or 1,
        priority=wire.priority or 0,
        cache_salt=wire.cache_salt or "",
        emit_interval=_emit_interval(wire, form, config),
        usage_at_end=config.force_include_usage or bool(options.include_usage),
        usage_always=bool(options.continuous_usage_stats),
        usage_cached=config.prompt_tokens_details,
    )


def _is_long(wire: CompletionRequest) -> bool:
    """Whether converting the parameters takes more than a millisecond or so."""
    num_ids = len(wire.logit_bias or ()) + len(wire.allowed_token_ids or ())
    return len(wire.bad_words or ()) > INLINE_BAD_WORDS or num_ids > INLINE_IDS


def check_model(name: str | None, config: ServerConfig) -> None:
    """404 unless the server answers to `name`."""
    if name is not None and name not in config.model_names:
        served = ", ".join(config.model_names)
        message = f"the model {name!r} does not exist; served here: {served}"
        raise ApiError(404, message, param="model", code="model_not_found")


def _check_combinations(wire: CompletionRequest, config: ServerConfig) -> None:
    n = 1 if wire.n is None else wire.n
    if n > config.max_choices:
        limit = config.max_choices
        raise bad_request("n", f"n must be at most {limit} (--max-n-sequences), got {n}")
    if wire.best_of not in (None, n):
        raise bad_request("best_of", f"best_of must be null or n ({n}), got {wire.best_of}")
    if len(wire.prompt) > config.max_prompts:
        raise bad_request(
            "prompt",
            f"prompt must be at most {config.max_prompts} prompts (--max-completion-prompts), "
            f"got {len(wire.prompt)}",
        )
    if wire.stream_options is not None and not wire.stream:
        raise bad_request("stream_options", "stream_options needs stream to be true")
    check_priority(wire.priority, config)


def check_priority(priority: int | None, config: ServerConfig) -> None:
    """400 for one that nothing would come of."""
    if priority and not config.priority_scheduling:
        raise bad_request(
            "priority",
            f"priority must be 0 without --scheduling-policy priority, got {priority}",
        )


def _check_prompts(wire: CompletionRequest, prompts: list[Prompt], form: ReplyForm) -> None:
    for prompt in prompts:
        if form.min_tokens > prompt.max_tokens:
            raise bad_request(
                "min_tokens",
                f"min_tokens must be at most max_tokens ({prompt.max_tokens}), "
                f"got {form.min_tokens}",
            )
        start, prompt_len = wire.prompt_logprob_start or 1, len(prompt.token_ids)
        if start > 1 and start >= prompt_len:  # 1 is what it is where none is given
            raise bad_request(
                "prompt_logprob_start",
                f"prompt_logprob_start must be below the prompt's {prompt_len} tokens, got {start}",
            )


def _reply_form(
    wire: CompletionRequest, params: SamplingParams, config: ServerConfig, info: EngineInfo
) -> ReplyForm:
    as_ids = wire.return_tokens_as_token_ids
    return ReplyForm(
        stream=bool(wire.stream),
        echo=bool(wire.echo),
        stops=tuple(wire.stop or ()),
        include_stop=bool(wire.include_stop_str_in_output),
        min_tokens=params.min_tokens,
        num_top=params.logprobs,
        explicit_ids=params.logprob_token_ids,
        num_prompt_top=num_top("prompt_logprobs", wire.prompt_logprobs, config, info),
        prompt_explicit_ids=tuple(wire.prompt_logprob_token_ids or ()) or None,
        prompt_logprobs=prompt_logprobs_params(wire, params, config, info),
        mode=params.logprobs_mode,
        tokens_as_ids=config.tokens_as_token_ids if as_ids is None else as_ids,
        return_token_ids=bool(wire.return_token_ids),
        skip_special_tokens=wire.skip_special_tokens is not False,
        spaces_between=wire.spaces_between_special_tokens is not False,
        next_token_only=wire.max_tokens == 0,
        packed=wire.logprobs_format == "packed",
        silent_ends=frozenset() if wire.ignore_eos else frozenset(info.eos_token_ids),
    )


def _emit_interval(wire: CompletionRequest, form: ReplyForm, config: ServerConfig) -> int:
    if form.stream:
        return max(wire.stream_interval or 1, config.stream_interval)
    return STOP_STRING_INTERVAL if form.stops else NON_STREAM_INTERVAL
