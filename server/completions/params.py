"""From wire fields to what the engine is told, each field honoured or refused by name."""

from __future__ import annotations

from typing import TypeVar

from engine.config import EngineInfo
from engine.request import PromptLogprobsParams
from sampling.params import ParameterError, SamplingParams
from server.config import ServerConfig
from server.errors import bad_request
from server.schema.completions import CompletionRequest, LogprobFields
from server.text.tokenizer import Tokenizer

T = TypeVar("T")


def sampling_params(
    wire: CompletionRequest,
    *,
    config: ServerConfig,
    info: EngineInfo,
    tokenizer: Tokenizer,
    drawn_seed: int | None,
) -> SamplingParams:
    """How the tokens of each choice are drawn; raises `ApiError`.

    Args:
        drawn_seed: for a request without one; None leaves it to the engine.
    """
    defaults = config.defaults
    seed = drawn_seed if wire.seed in (None, -1) else wire.seed
    try:
        params = SamplingParams(
            temperature=_given(wire.temperature, defaults.temperature),
            top_k=max(_given(wire.top_k, defaults.top_k), 0),
            top_p=_given(wire.top_p, defaults.top_p),
            min_p=_given(wire.min_p, defaults.min_p),
            repetition_penalty=_given(wire.repetition_penalty, defaults.repetition_penalty),
            presence_penalty=wire.presence_penalty or 0.0,
            frequency_penalty=wire.frequency_penalty or 0.0,
            seed=seed,
            logit_bias={int(key): bias for key, bias in (wire.logit_bias or {}).items()},
            allowed_token_ids=_ids(wire.allowed_token_ids),
            bad_words=bad_words(wire.bad_words or [], tokenizer),
            min_tokens=wire.min_tokens or 0,
            stop_token_ids=_stop_token_ids(wire, info),
            logprobs=num_top("logprobs", wire.logprobs, config, info),
            logprob_token_ids=_ids(wire.logprob_token_ids),
            logprobs_mode=wire.logprobs_mode or config.logprobs_mode,
        )
        params.check_vocab(info.vocab_size)
    except ParameterError as error:
        raise bad_request(error.param, str(error)) from None
    return params


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _ids(token_ids: list[int] | None) -> tuple[int, ...] | None:
    return None if token_ids is None else tuple(token_ids)


def _stop_token_ids(wire: CompletionRequest, info: EngineInfo) -> tuple[int, ...]:
    eos = () if wire.ignore_eos else info.eos_token_ids
    return tuple(dict.fromkeys((*eos, *(wire.stop_token_ids or ()))))


def num_top(param: str, value: int | None, config: ServerConfig, info: EngineInfo) -> int | None:
    """Top tokens to report; -1 is all of the vocabulary."""
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
    """Each word's tokens, at the start of a word and inside, as vLLM takes them."""
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
    wire: CompletionRequest, params: SamplingParams, config: ServerConfig, info: EngineInfo
) -> PromptLogprobsParams | None:
    """What of the prompt is scored; None for nothing. Raises `ApiError`."""
    num_prompt_top = num_top("prompt_logprobs", wire.prompt_logprobs, config, info)
    echoed = params.logprobs if wire.echo else None
    token_ids = tuple(wire.prompt_logprob_token_ids or ())
    for token_id in token_ids:
        if token_id >= info.vocab_size:
            raise bad_request(
                "prompt_logprob_token_ids",
                f"prompt_logprob_token_ids holds id {token_id}; ids of this model are "
                f"0 to {info.vocab_size - 1}",
            )
    if num_prompt_top is None and echoed is None and not token_ids:
        _refuse_lone_start(wire)
        return None
    return PromptLogprobsParams(
        start=max(wire.prompt_logprob_start or 1, 1),
        num_top=max(num_prompt_top or 0, echoed or 0),
        token_ids=token_ids,
        mode=params.logprobs_mode,
    )


def _refuse_lone_start(wire: LogprobFields) -> None:
    if wire.prompt_logprob_start is not None:
        raise bad_request(
            "prompt_logprob_start",
            "prompt_logprob_start needs prompt_logprobs, prompt_logprob_token_ids, or echo with "
            f"logprobs; got {wire.prompt_logprob_start} alone",
        )
