"""The choices of a file of requests and their replies, one pair a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from msgspec import structs

from engine.audit.drawn import DrawnChoice
from engine.errors import ConfigError
from sampling.params import SamplingParams
from server.audit.joined import Json, UnreadableReplyError, joined
from server.audit.parameters import Body, RefusedError, Served, read_body, sampling_params
from server.audit.reported import reported_logprobs
from server.endpoints.completions.schema import CompletionRequest


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
    try:
        typed = read_body(body)
        request = _Request(typed, sampling_params(typed, served), _prompts(typed))
    except RefusedError as error:
        yield from (_refused(number, _index(choice) or 0, str(error)) for choice in choices)
        return
    seen = set[int]()
    for choice in choices:
        found = _choice(number, request, reply, choice, served)
        if found.refusal is None and found.index in seen:
            why = f"its reply has two choices with index {found.index}"
            found = structs.replace(found, refusal=why)
        seen.add(found.index)
        yield found


class _Request(NamedTuple):
    """What the choices of a line have in common; `prompts` are those of `_prompts`."""

    body: Body
    params: SamplingParams
    prompts: Sequence[list[int] | None]


def _index(choice: Json) -> int | None:
    """A choice's index; None where it is no number."""
    index = choice.get("index")
    return index if type(index) is int else None


def _refused(number: int, index: int, why: str) -> DrawnChoice:
    return DrawnChoice(
        line=number,
        index=index,
        choice=0,
        prompt=[],
        output=[],
        params=SamplingParams(),
        refusal=why,
    )


def _choice(
    number: int, request: _Request, reply: Json, choice: Json, served: Served
) -> DrawnChoice:
    body, params, prompts = request
    index, n = _index(choice), body.n or 1
    if index is None:
        return _refused(number, 0, f"its index is {choice.get('index')!r}, which is no number")
    if not 0 <= index < n * len(prompts):
        return _refused(number, index, f"its index is {index}, of {n * len(prompts)} choices")
    try:
        _check_drafts(reply, choice, params, served)
        output = _output(body, choice, served)
        return DrawnChoice(
            line=number,
            index=index,
            choice=index % n,
            prompt=_prompt(body, reply, choice, prompts[index // n]),
            output=output,
            params=params,
            logprobs=reported_logprobs(body, choice, output, served.config.logprobs_mode),
        )
    except RefusedError as error:
        why = str(error)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"a field of it is not what its API has there: {error}"
    return _refused(number, index, why)


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


def _prompts(body: Body) -> Sequence[list[int] | None]:
    """The ids of each prompt of a body; None for a text or a chat."""
    if not isinstance(body, CompletionRequest):
        return [None]
    return [None if isinstance(prompt, str) else prompt.tolist() for prompt in body.prompt]


def _output(body: Body, choice: Json, served: Served) -> list[int]:
    output = _ids(choice.get("token_ids"), "token_ids")
    if output is None:
        raise RefusedError("it has no token_ids: ask with return_token_ids")
    most = body.token_limit
    if most is None and isinstance(body, CompletionRequest):
        most = served.config.defaults.max_tokens
    if most is not None and len(output) > most:
        raise RefusedError(f"it has {len(output)} tokens, and max_tokens is {most}")
    return output


def _ids(value: Any, name: str) -> list[int] | None:
    """A list of ids; None where there is none. Raises `RefusedError` for anything else."""
    if not isinstance(value, list):
        return None
    if not all(type(token) is int for token in value):
        raise RefusedError(f"its {name} are no numbers")
    return value


def _prompt(body: Body, reply: Json, choice: Json, asked: list[int] | None) -> list[int]:
    """The prompt's ids: of the choice, of a chat's reply, or of the body.

    Args:
        asked: the body's own, where it has ids.

    Raises:
        RefusedError: there are none, or they are not the ids that were asked.
    """
    for given in (choice.get("prompt_token_ids"), reply.get("prompt_token_ids"), asked):
        if prompt := _ids(given, "prompt_token_ids"):
            if asked and prompt != _cut(asked, len(prompt), body):
                raise RefusedError("its prompt_token_ids are not the ids that were asked")
            return prompt
    raise RefusedError("it has no prompt_token_ids: ask with return_token_ids")


def _cut(ids: list[int], count: int, body: Body) -> list[int]:
    """What is left of a prompt's ids where a body lets it be cut to so many."""
    if body.truncate_prompt_tokens is None:
        return ids
    return ids[:count] if body.truncation_side == "right" else ids[-count:]
