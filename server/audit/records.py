"""The choices of a file of requests and their replies, one pair a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from msgspec import structs

from engine.audit.drawn import DrawnChoice
from engine.errors import ConfigError
from sampling.params import SamplingParams
from server.audit.joined import Json, UnreadableReplyError, joined
from server.audit.parameters import RefusedError, sampling_params
from server.audit.reported import reported_logprobs


class Served(NamedTuple):
    """What the file does not say of the server.

    Attributes:
        defaults: of sampling fields.
        eos_token_ids: the model's ends of text.
        words: token ids of `bad_words`.
        keeps_draws: whether its drafts leave the tokens of a seed as they are; None where it
            drafts nothing.
        logprobs_mode: of requests that name none.
        accepts_at_rates: it accepts drafts at given rates ("synthetic"), of greedy rows too.
    """

    defaults: Json
    eos_token_ids: tuple[int, ...]
    words: Callable[[list[str]], Any]
    keeps_draws: bool | None
    logprobs_mode: str = "raw_logprobs"
    accepts_at_rates: bool = False


def read_choices(path: Path, served: Served) -> Iterator[DrawnChoice]:
    """Yield each choice of each line; raises `ConfigError` for a line that is not a pair."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if not any(line.strip() for line in lines):
        raise ConfigError(f"{path} is empty: it has a request and its reply a line")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield from _pair(f"{path}, line {number}", number, line, served)


def _pair(where: str, number: int, line: bytes, served: Served) -> Iterator[DrawnChoice]:
    try:
        pair = orjson.loads(line)
        body, reply = pair["request"], joined(pair["response"])
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{where}: it is no JSON, which has no NaN either: {error}") from None
    except (KeyError, TypeError):
        words = 'must be an object with "request" and "response"'
        raise ConfigError(f"{where}: it {words}") from None
    except UnreadableReplyError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not isinstance(body, dict):
        raise ConfigError(f"{where}: the request is no object")
    choices = reply.get("choices")
    if not isinstance(choices, list) or not all(isinstance(each, dict) for each in choices):
        raise ConfigError(f"{where}: the reply's choices are no list of objects")
    seen = set[int]()
    for choice in choices:
        found = _choice(number, body, reply, choice, served)
        if found.refusal is None and found.index in seen:
            why = f"its reply has two choices with index {found.index}"
            found = structs.replace(found, refusal=why)
        seen.add(found.index)
        yield found


def _choice(number: int, body: Json, reply: Json, choice: Json, served: Served) -> DrawnChoice:
    index, place = 0, 0
    try:
        index, n, prompts = int(choice.get("index", 0)), int(body.get("n") or 1), _prompts(body)
        place = index % n
        if not 0 <= index < n * len(prompts):
            raise RefusedError(f"its index is {index}, of {n * len(prompts)} choices")
        params = sampling_params(body, served.defaults, served.eos_token_ids, served.words)
        _check_drafts(reply, choice, params, served)
        output = _output(body, choice)
        return DrawnChoice(
            line=number,
            index=index,
            choice=place,
            prompt=_prompt(body, reply, choice, prompts[index // n]),
            output=output,
            params=params,
            logprobs=reported_logprobs(body, choice, output, served.logprobs_mode),
        )
    except RefusedError as error:
        why = str(error)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"a field of it is not what its API has there: {error}"
    nothing = SamplingParams()
    return DrawnChoice(
        line=number, index=index, choice=place, prompt=[], output=[], params=nothing, refusal=why
    )


def _check_drafts(reply: Json, choice: Json, params: SamplingParams, served: Served) -> None:
    """Raise `RefusedError` where tokens depend on drafts, which no reply has."""
    drafted = bool((reply.get("metrics") or {}).get("num_drafts")) or any(
        origin != "drawn" for origin in choice.get("token_origins") or ()
    )
    keeps_draws = served.keeps_draws or (params.greedy and not served.accepts_at_rates)
    if not drafted or keeps_draws:
        return
    if served.keeps_draws is None:
        raise RefusedError("it was drawn with drafts: give the server's --speculative-config")
    raise RefusedError(
        'drafts were sampled ("gumbel") or accepted at a rate ("synthetic"): tokens depend on '
        'drafts that the reply does not have; draft_sample_method "greedy" and '
        'rejection_sample_method "coupled" draw those of the contract'
    )


def _prompts(body: Json) -> list[Any]:
    """The prompts of a body: texts, lists of ids, or None for a chat."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or all(isinstance(token, int) for token in prompt):
        return [prompt]
    return prompt


def _output(body: Json, choice: Json) -> list[int]:
    if not isinstance(choice.get("token_ids"), list):
        raise RefusedError("it has no token_ids: ask with return_token_ids")
    output = [int(token) for token in choice["token_ids"]]
    for name in ("max_tokens", "max_completion_tokens"):
        most = body.get(name)
        if most is not None and len(output) > int(most):
            raise RefusedError(f"it has {len(output)} tokens, and {name} is {most}")
    return output


def _prompt(body: Json, reply: Json, choice: Json, asked: Any) -> list[int]:
    """The prompt's ids: of the choice, of a chat's reply, or of the body.

    Args:
        asked: the body's prompt that the choice goes on from.

    Raises:
        RefusedError: there are none, or they are not the ids that were asked.
    """
    ids = asked if isinstance(asked, list) else None
    for given in (choice.get("prompt_token_ids"), reply.get("prompt_token_ids"), ids):
        if given:
            prompt = [int(token) for token in given]
            if ids and prompt != ids and body.get("truncate_prompt_tokens") is None:
                raise RefusedError("its prompt_token_ids are not the ids that were asked")
            return prompt
    raise RefusedError("it has no prompt_token_ids: ask with return_token_ids")
