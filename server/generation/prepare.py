"""Makes a completion request ready: prompts as ids, parameters checked, the reply's form known."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial

import msgspec

from engine.config import EngineInfo
from engine.request import Grammar, ThinkingBudget
from sampling.params import SamplingParams
from server.config import ServerConfig
from server.endpoints.completions.schema import CompletionRequest
from server.errors import bad_request
from server.generation.bounds import check_num_allowed_ids, check_num_choices, check_reply_size
from server.generation.form import ReplyForm, reply_form
from server.generation.params import sampling_params
from server.generation.prompts import Prompt, prepare_prompts
from server.schema.checks import check_model, check_priority
from server.schema.fields import StreamOptions
from server.structured.checker import GrammarChecker
from server.structured.spec import CheckedGrammar, GrammarSpec
from server.structured.wanted import allows_calls, two_grammars, wanted_grammar
from server.text.stop import StopStrings
from server.text.tokenizer import Tokenizer

INLINE_BAD_WORDS, INLINE_IDS, INLINE_STOP_CHARS = 16, 4096, 1024
NON_STREAM_INTERVAL, STOP_STRING_INTERVAL = 32, 4
_NO_OPTIONS = StreamOptions()


class Constraints(msgspec.Struct, frozen=True):
    """What masks hold a chat's replies to, beside what the fields of a completion ask for.

    Attributes:
        calls: a grammar of tools' calls, and of the answer that a response format asks for where
            there may be one; it stands beside no other.
        ignored: where keywords of the tools' schemas stood that were dropped.
        after, unless_opened: see `Grammar`.
        budget: of thoughts.
    """

    calls: GrammarSpec | None = None
    ignored: list[str] = []
    after: tuple[int, ...] = ()
    unless_opened: tuple[int, ...] = ()
    budget: ThinkingBudget | None = None


NO_CONSTRAINTS = Constraints()


class PreparedRequest(msgspec.Struct, frozen=True):
    """A completion request as far as it is known before the engine is asked.

    Attributes:
        grammar: restricts each choice's tokens; None for none.
        thinking_budget: bounds each choice's thoughts; None for none.
        ignored_keywords: where keywords of JSON schemas stood that were dropped.
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
    grammar: Grammar | None
    thinking_budget: ThinkingBudget | None
    ignored_keywords: list[str]
    emit_interval: int
    usage_at_end: bool
    usage_always: bool
    usage_cached: bool

    @property
    def num_choices(self) -> int:
        """Choices of all prompts together."""
        return len(self.prompts) * self.n


async def prepare_request(
    body: CompletionRequest,
    *,
    config: ServerConfig,
    info: EngineInfo,
    tokenizer: Tokenizer,
    grammars: GrammarChecker,
    constraints: Constraints = NO_CONSTRAINTS,
    request_id: str | None = None,
    id_prefix: str = "cmpl",
    default_max_tokens: int | None = None,
    token_starts: bool = False,
) -> PreparedRequest:
    """Check and convert a request; raises `ApiError` for what cannot be served.

    Args:
        request_id: names the reply where the body does not.
        id_prefix: the reply's id begins with it.
        default_max_tokens: of a request without `max_tokens`; None takes the server's default.
        token_starts: see `ReplyForm`.
    """
    check_model(body.model, config)
    _check_combinations(body, config)
    checked = await _checked_grammar(body, constraints, grammars)
    make_params = partial(
        sampling_params,
        body,
        config=config,
        info=info,
        tokenizer=tokenizer,
        grammar=checked,
        budget=constraints.budget,
    )
    params = await asyncio.to_thread(make_params) if _is_long(body) else make_params()
    stops = await _stop_strings(body)
    form = reply_form(body, params, stops, config, info, token_starts=token_starts)
    prompts = await _prompts(body, form, default_max_tokens, config, info, tokenizer)
    n = body.n or 1
    check_reply_size(form, prompts, n, config)
    options = body.stream_options or _NO_OPTIONS
    return PreparedRequest(
        reply_id=f"{id_prefix}-{body.request_id or request_id or secrets.token_hex(16)}",
        created=int(time.time()),
        model=body.model or config.model_names[0],
        fingerprint=config.fingerprint,
        prompts=prompts,
        params=params,
        form=form,
        n=n,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        grammar=None if checked is None else _grammar(checked, constraints),
        thinking_budget=constraints.budget,
        ignored_keywords=constraints.ignored + ([] if checked is None else checked.ignored),
        emit_interval=_emit_interval(body, form, config),
        usage_at_end=config.force_include_usage or bool(options.include_usage),
        usage_always=bool(options.continuous_usage_stats),
        usage_cached=config.prompt_tokens_details,
    )


async def _prompts(
    body: CompletionRequest,
    form: ReplyForm,
    default_max_tokens: int | None,
    config: ServerConfig,
    info: EngineInfo,
    tokenizer: Tokenizer,
) -> list[Prompt]:
    """The body's prompts, checked against the form of the reply."""
    max_tokens = config.defaults.max_tokens if default_max_tokens is None else default_max_tokens
    prompts = await prepare_prompts(
        body, default_max_tokens=max_tokens, info=info, tokenizer=tokenizer
    )
    _check_prompts(body, prompts, form)
    return prompts


async def _checked_grammar(
    body: CompletionRequest, constraints: Constraints, grammars: GrammarChecker
) -> CheckedGrammar | None:
    spec = wanted_grammar(body.response_format, body.structured_outputs)
    if constraints.calls is not None:
        if spec is not None and not allows_calls(spec):
            raise two_grammars(constraints.calls, spec.param)
        spec = constraints.calls
    if spec is None:
        return None
    if body.ignore_eos:
        raise bad_request(
            "ignore_eos",
            f"ignore_eos must be false with {spec.param}: a finished grammar allows an end of text "
            "only",
        )
    checked = await grammars.check(spec)
    if constraints.after:  # the first token need not be one of the grammar's
        checked = msgspec.structs.replace(checked, first=b"\xff" * len(checked.first))
    return checked


def _grammar(checked: CheckedGrammar, constraints: Constraints) -> Grammar:
    return Grammar(
        source=checked.source,
        after=constraints.after,
        unless_opened=constraints.unless_opened,
    )


def _is_long(body: CompletionRequest) -> bool:
    """Whether converting the parameters takes more than a millisecond or so."""
    num_ids = len(body.logit_bias or ()) + len(body.allowed_token_ids or ())
    return len(body.bad_words or ()) > INLINE_BAD_WORDS or num_ids > INLINE_IDS


async def _stop_strings(body: CompletionRequest) -> StopStrings | None:
    if not body.stop:
        return None
    if sum(map(len, body.stop)) <= INLINE_STOP_CHARS:
        return StopStrings(body.stop)
    return await asyncio.to_thread(StopStrings, body.stop)


def _check_combinations(body: CompletionRequest, config: ServerConfig) -> None:
    n = body.n or 1
    if n > config.max_choices:
        limit = config.max_choices
        raise bad_request("n", f"n must be at most {limit} (--max-n-sequences), got {n}")
    if body.best_of not in (None, n):
        raise bad_request("best_of", f"best_of must be null or n ({n}), got {body.best_of}")
    if len(body.prompt) > config.max_prompts:
        raise bad_request(
            "prompt",
            f"prompt must be at most {config.max_prompts} prompts (--max-completion-prompts), "
            f"got {len(body.prompt)}",
        )
    check_num_choices(len(body.prompt), n, config)
    check_num_allowed_ids(len(body.prompt), len(body.allowed_token_ids or ()))
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options", "stream_options needs stream to be true")
    check_priority(body.priority, config)


def _check_prompts(body: CompletionRequest, prompts: list[Prompt], form: ReplyForm) -> None:
    for prompt in prompts:
        if form.min_tokens > prompt.max_tokens:
            raise bad_request(
                "min_tokens",
                f"min_tokens must be at most max_tokens ({prompt.max_tokens}), "
                f"got {form.min_tokens}",
            )
        start, prompt_len = body.prompt_logprob_start or 1, len(prompt.token_ids)
        # A prompt of one token has no logprobs to show: 1, the default, is right for it too.
        if start > 1 and start >= prompt_len:
            raise bad_request(
                "prompt_logprob_start",
                f"prompt_logprob_start must be below the prompt's {prompt_len} tokens, got {start}",
            )


def _emit_interval(body: CompletionRequest, form: ReplyForm, config: ServerConfig) -> int:
    if form.stream:
        return max(body.stream_interval or 1, config.stream_interval)
    return NON_STREAM_INTERVAL if form.stops is None else STOP_STRING_INTERVAL
