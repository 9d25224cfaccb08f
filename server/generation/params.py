"""Turns fields of a body into what the engine is told; each is honoured or refused by name."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from engine.config import EngineInfo
from engine.request import PromptLogprobsParams, ThinkingBudget
from sampling.params import ParameterError, SamplingParams
from server.config import ServerConfig
from server.endpoints.completions.schema import CompletionRequest
from server.errors import bad_request
from server.schema.generation import LogprobFields
from server.structured.spec import CheckedGrammar
from server.text.tokenizer import Tokenizer

T = TypeVar("T")


def sampling_params(
    body: CompletionRequest,
    *,
    config: ServerConfig,
    info: EngineInfo,
    tokenizer: Tokenizer,
    grammar: CheckedGrammar | None = None,
    budget: ThinkingBudget | None = None,
) -> SamplingParams:
    """How the tokens of each choice are drawn; raises `ApiError` for what cannot be served.

    Args:
        grammar: restricts the tokens from the first one on.
        budget: bounds the thoughts.
    """
    defaults = config.defaults
    try:
        params = SamplingParams(
            temperature=_given(body.temperature, defaults.temperature),
            top_k=max(_given(body.top_k, defaults.top_k), 0),
            top_p=_given(body.top_p, defaults.top_p),
            min_p=_given(body.min_p, defaults.min_p),
            repetition_penalty=_given(body.repetition_penalty, defaults.repetition_penalty),
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            seed=None if body.seed == -1 else body.seed,
            logit_bias={int(key): bias for key, bias in (body.logit_bias or {}).items()},
            allowed_token_ids=_ids(body.allowed_token_ids),
            bad_words=bad_words(body.bad_words or [], tokenizer),
            min_tokens=body.min_tokens or 0,
            stop_token_ids=_stop_token_ids(body, info),
            logprobs=num_top("logprobs", body.logprobs, config, info),
            logprob_token_ids=_ids(body.logprob_token_ids),
            logprobs_mode=body.logprobs_mode or config.logprobs_mode,
            kept_logprob=bool(body.kept_logprob),
            constrained=grammar is not None or budget is not None,
        )
        params.check_vocab(info.vocab_size)
    except ParameterError as error:
        raise bad_request(error.param, str(error)) from None
    check_some_token_is_left(params, info)
    if grammar is not None:
        check_grammar(params, grammar, info)
    if budget is not None:
        check_budget(params, budget)
    return params


def check_budget(params: SamplingParams, budget: ThinkingBudget) -> None:
    """Raise a 400 where other masks leave out what ends thoughts."""
    allowed = params.allowed_token_ids
    banned = {word[0] for word in params.bad_words if len(word) == 1}
    for param, is_left_out in (
        ("allowed_token_ids", allowed is not None and not set(allowed).issuperset(budget.end)),
        ("bad_words", not banned.isdisjoint(budget.end)),
    ):
        if is_left_out:
            raise bad_request(
                param,
                f"{param} leaves out an id of the marker that ends thoughts at their budget: "
                f"{', '.join(map(str, budget.end))}",
                "no_token_allowed",
            )


def check_grammar(params: SamplingParams, grammar: CheckedGrammar, info: EngineInfo) -> None:
    """Raise a 400 where a grammar together with other masks cannot begin, or cannot end."""
    allowed = params.allowed_token_ids
    banned = {word[0] for word in params.bad_words if len(word) == 1}
    ends = [i for i in info.eos_token_ids if allowed is None or i in allowed]
    if not set(ends) - banned:
        param = "bad_words" if ends else "allowed_token_ids"
        raise bad_request(
            param,
            f"{param} leaves none of the ids that end a finished grammar: "
            f"{', '.join(map(str, info.eos_token_ids))}",
            "no_token_allowed",
        )
    if params.min_tokens:
        banned.update(params.stop_token_ids)
    bits = np.unpackbits(np.frombuffer(grammar.first, dtype=np.uint8), bitorder="little")
    first = np.flatnonzero(bits[: info.vocab_size]).tolist()
    if banned.issuperset(first if allowed is None else set(allowed).intersection(first)):
        param = "min_tokens" if allowed is None and not params.bad_words else "bad_words"
        param = param if allowed is None else "allowed_token_ids"
        raise bad_request(
            param,
            f"{param} leaves no token that the grammar may begin with",
            "no_token_allowed",
        )


def check_some_token_is_left(params: SamplingParams, info: EngineInfo) -> None:
    """Raise a 400 where masks that hold from the first token on leave no token to draw.

    These are `allowed_token_ids`, `bad_words` of one token, and the ends of text below
    `min_tokens`. Biases are finite, so that none of them masks a token.
    """
    allowed = params.allowed_token_ids
    masked = {word[0] for word in params.bad_words if len(word) == 1}
    if params.min_tokens:
        masked.update(params.stop_token_ids)
    if allowed is None and len(masked) < info.vocab_size:
        return
    if masked.issuperset(range(info.vocab_size) if allowed is None else allowed):
        param = "bad_words" if allowed is None else "allowed_token_ids"
        names = "bad_words, or ends of text that min_tokens masks"
        raise bad_request(
            param, f"{param} leaves no token to draw: all are in {names}", "no_token_allowed"
        )


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _ids(token_ids: list[int] | None) -> tuple[int, ...] | None:
    return None if token_ids is None else tuple(token_ids)


def _stop_token_ids(body: CompletionRequest, info: EngineInfo) -> tuple[int, ...]:
    eos = () if body.ignore_eos else info.eos_token_ids
    return tuple(dict.fromkeys((*eos, *(body.stop_token_ids or ()))))


def num_top(param: str, value: int | None, config: ServerConfig, info: EngineInfo) -> int | None:
    """The number of top tokens to report, where -1 is all of the vocabulary; raises `ApiError`."""
    limit = info.vocab_size if config.max_logprobs == -1 else config.max_logprobs
    if value is None:
        return None
    if value == -1 and config.max_logprobs == -1:
        return info.vocab_size
    if not 0 <= value <= limit:
        raise bad_request(
            param, f"{param} must be between 0 and {limit} (--max-logprobs), got {value}"
        )
    return value


def bad_words(words: list[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word, alone and after a space, as vLLM has them; raises `ApiError`."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        inside = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        if not inside:
            reason = "which has no tokens: white space before a word does not count"
            raise bad_request("bad_words", f"bad_words holds {word!r}, {reason}")
        found[inside] = None
        if spaced and spaced[0] != inside[0] and len(spaced) == len(inside):
            found[spaced] = None
    return tuple(found)


def prompt_logprobs_params(
    body: CompletionRequest, params: SamplingParams, config: ServerConfig, info: EngineInfo
) -> PromptLogprobsParams | None:
    """Which logprobs of the prompt are asked for; None for none. Raises `ApiError`."""
    num_prompt_top = num_top("prompt_logprobs", body.prompt_logprobs, config, info)
    echoed = params.logprobs if body.echo else None
    token_ids = tuple(body.prompt_logprob_token_ids or ())
    for token_id in token_ids:
        if token_id >= info.vocab_size:
            raise bad_request(
                "prompt_logprob_token_ids",
                f"prompt_logprob_token_ids holds id {token_id}; ids of this model are "
                f"0 to {info.vocab_size - 1}",
            )
    if num_prompt_top is None and echoed is None and not token_ids:
        _refuse_lone_start(body)
        return None
    return PromptLogprobsParams(
        start=max(body.prompt_logprob_start or 1, 1),
        num_top=max(num_prompt_top or 0, echoed or 0),
        token_ids=token_ids,
        mode=params.logprobs_mode,
    )


def _refuse_lone_start(body: LogprobFields) -> None:
    if body.prompt_logprob_start is not None:
        raise bad_request(
            "prompt_logprob_start",
            "prompt_logprob_start needs prompt_logprobs, prompt_logprob_token_ids, or echo with "
            f"logprobs; got {body.prompt_logprob_start} alone",
        )
