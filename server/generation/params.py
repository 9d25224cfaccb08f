"""Fields of a body as parameters of the engine; each is honored or refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from engine.request import PromptLogprobsParams
from sampling.params import ParameterError, SamplingParams
from server.config import SamplingDefaults
from server.errors import ClientNames, bad_request
from server.generation.masks import check_some_token_is_left
from server.generation.served import ServedModel
from server.schema.base import BodyModel
from server.schema.fields import PackedDtype, PackedFormat
from server.schema.generation import LogprobFields
from server.schema.ids import check_vocab
from server.structured.spec import NO_CONSTRAINTS, Constraints
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
        raise body.client_names.refuse(
            "ignore_eos", f"must be false with {grammar.param}: {reason}"
        )
    given: dict[str, Any] = {
        name: value for name in _SAME if (value := getattr(body, name, None)) is not None
    }
    given["logprobs"] = num_top("logprobs", logprobs, served, body.client_names)
    ends = () if getattr(body, "ignore_eos", None) else served.info.eos_token_ids
    stops = getattr(body, "stop_token_ids", None) or ()
    given["stop_token_ids"] = tuple(dict.fromkeys((*ends, *stops)))
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
    body: LogprobFields, params: SamplingParams, num_prompt_top: int | None, served: ServedModel
) -> PromptLogprobsParams | None:
    """Which logprobs of the prompt are asked for; None for none. Raises `ApiError`.

    Args:
        num_prompt_top: top tokens in `prompt_logprobs`; those of an echoed prompt are as many as of
            the generated tokens.
    """
    echoed = params.logprobs if body.echoes_prompt else None
    ids, start = body.prompt_logprob_token_ids, body.prompt_logprob_start
    if ids is not None:
        check_vocab("prompt_logprob_token_ids", ids.reshape(-1), served.info.vocab_size)
    elif num_prompt_top is None and echoed is None:
        if start is not None:
            raise bad_request(
                "prompt_logprob_start",
                "prompt_logprob_start needs prompt_logprobs, prompt_logprob_token_ids, or echo "
                f"with logprobs; got {start} alone",
            )
        return None
    return PromptLogprobsParams(
        start=max(start or 1, 1),
        num_top=max(num_prompt_top or 0, echoed or 0),
        token_ids=tuple(ids.tolist()) if ids is not None and ids.ndim == 1 else (),
        id_lists=ids if ids is not None and ids.ndim == 2 else None,
        mode=params.logprobs_mode,
        by_part=body.sends_prompt_parts,
    )


def packed_dtype(layout: PackedFormat | None, dtype: PackedDtype | None) -> PackedDtype:
    """What packed values are rounded to; raises `ApiError` for values that are not packed."""
    if dtype is not None and layout != "packed":
        words = f'logprobs_dtype needs logprobs_format "packed", got {dtype} alone'
        raise bad_request("logprobs_dtype", words)
    return dtype or "float32"
