"""Fields of a body as parameters of the engine; each is honored or refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from engine.contracts.info import EngineInfo
from engine.request import PromptLogprobsParams, ThinkingBudget
from sampling.params import ParameterError, SamplingParams
from server.config import SamplingDefaults
from server.errors import ClientNames, bad_request
from server.generation.served import ServedModel
from server.schema.base import BodyModel
from server.schema.fields import PackedDtype
from server.schema.generation import LogprobFields
from server.schema.ids import check_vocab
from server.structured.spec import NO_CONSTRAINTS, CheckedGrammar, Constraints
from server.text.tokenizer import Tokenizer

INLINE_BAD_WORDS, INLINE_IDS = 16, 4096
_CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    "top_k": lambda top_k: max(top_k, 0),  # -1 keeps all, as 0 does
    "seed": lambda seed: None if seed == -1 else seed,
    "logit_bias": lambda biases: {int(key): bias for key, bias in biases.items()},
    "allowed_token_ids": tuple,
    "logprob_token_ids": tuple,
}
"""How values of a body become values of `SamplingParams`; others are the same in both."""
_OWN = frozenset(("logprobs", "bad_words", "stop_token_ids", "constrained"))
"""Parameters that are made of more than a field of their name."""
_SAME = [name for name in SamplingParams.__struct_fields__ if name not in _OWN]
_DEFAULTS = [name for name in _SAME if name in SamplingDefaults.__struct_fields__]


async def sampling_params(
    body: BodyModel,
    served: ServedModel,
    names: ClientNames,
    *,
    logprobs: int | None = None,
    constraints: Constraints = NO_CONSTRAINTS,
) -> SamplingParams:
    """How the tokens of each choice are drawn; raises `ApiError` for what cannot be served.

    A field of the body that has the name of a parameter sets it. Large ones are converted in a
    thread.

    Args:
        logprobs: top tokens that the body asks for.
        constraints: restrict the tokens from the first one on.
    """
    grammar = constraints.grammar
    if grammar is not None and getattr(body, "ignore_eos", None):
        reason = "a finished grammar allows an end of text only"
        raise names.refuse("ignore_eos", f"must be false with {grammar.param}: {reason}")
    given: dict[str, Any] = {
        name: value for name in _SAME if (value := getattr(body, name, None)) is not None
    }
    given["logprobs"] = num_top("logprobs", logprobs, served, names)
    given["stop_token_ids"] = _stop_token_ids(body, served.info)
    given["constrained"] = grammar is not None or constraints.budget is not None
    words: list[str] = getattr(body, "bad_words", None) or []
    make = partial(_sampling_params, given, words, served)
    num_ids = sum(len(given.get(name, ())) for name in ("logit_bias", "allowed_token_ids"))
    is_long = len(words) > INLINE_BAD_WORDS or num_ids > INLINE_IDS
    return await asyncio.to_thread(make) if is_long else make()


def _sampling_params(
    given: Mapping[str, Any], words: list[str], served: ServedModel
) -> SamplingParams:
    config, info = served.config, served.info
    defaults = {name: getattr(config.defaults, name) for name in _DEFAULTS}
    converted = {
        name: _CONVERTED[name](value) if name in _CONVERTED else value
        for name, value in given.items()
    }
    try:
        params = SamplingParams(
            **{"logprobs_mode": config.logprobs_mode, **defaults, **converted},
            bad_words=bad_words(words, served.tokenizer),
        )
        params.check_vocab(info.vocab_size)
    except ParameterError as error:
        raise bad_request(error.param, str(error)) from None
    check_some_token_is_left(params, info)
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


def _stop_token_ids(body: BodyModel, info: EngineInfo) -> tuple[int, ...]:
    eos = () if getattr(body, "ignore_eos", None) else info.eos_token_ids
    return tuple(dict.fromkeys((*eos, *(getattr(body, "stop_token_ids", None) or ()))))


def num_top(field: str, value: int | None, served: ServedModel, names: ClientNames) -> int | None:
    """The number of top tokens to report, where -1 is all of the vocabulary; raises `ApiError`."""
    is_prompt, vocab_size = field.startswith("prompt"), served.info.vocab_size
    most = served.config.max_logprobs if is_prompt else served.max_drawn_top
    if value is None:
        return None
    limit = vocab_size if most == -1 else most
    if value == -1 and limit >= vocab_size:
        return vocab_size
    if not 0 <= value <= limit:
        words = f"must be between 0 and {limit} (--max-logprobs), got {value}"
        raise names.refuse(field, words)
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
    body: LogprobFields,
    params: SamplingParams,
    num_prompt_top: int | None,
    info: EngineInfo,
    *,
    echo: bool,
    by_part: bool = False,
) -> PromptLogprobsParams | None:
    """Which logprobs of the prompt are asked for; None for none. Raises `ApiError`.

    Args:
        num_prompt_top: top tokens in `prompt_logprobs`.
        echo: the prompt's tokens are shown among the generated ones, with as many top tokens.
        by_part: parts are wanted as they are computed.
    """
    echoed = params.logprobs if echo else None
    ids = body.prompt_logprob_token_ids
    if ids is not None:
        check_vocab("prompt_logprob_token_ids", ids.reshape(-1), info.vocab_size)
    if num_prompt_top is None and echoed is None and ids is None:
        _refuse_lone_start(body)
        return None
    return PromptLogprobsParams(
        start=max(body.prompt_logprob_start or 1, 1),
        num_top=max(num_prompt_top or 0, echoed or 0),
        token_ids=tuple(ids.tolist()) if ids is not None and ids.ndim == 1 else (),
        id_lists=ids if ids is not None and ids.ndim == 2 else None,
        mode=params.logprobs_mode,
        by_part=by_part,
    )


def packed_dtype(body: LogprobFields) -> PackedDtype:
    """What packed values are rounded to; raises `ApiError` for values that are not packed."""
    if body.logprobs_dtype is not None and body.logprobs_format != "packed":
        raise bad_request(
            "logprobs_dtype",
            f'logprobs_dtype needs logprobs_format "packed", got {body.logprobs_dtype} alone',
        )
    return body.logprobs_dtype or "float32"


def _refuse_lone_start(body: LogprobFields) -> None:
    if body.prompt_logprob_start is not None:
        raise bad_request(
            "prompt_logprob_start",
            "prompt_logprob_start needs prompt_logprobs, prompt_logprob_token_ids, or echo with "
            f"logprobs; got {body.prompt_logprob_start} alone",
        )
