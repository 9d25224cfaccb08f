"""The choices of a file of requests and their replies, one pair a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from engine.audit.drawn import DrawnChoice
from engine.errors import ConfigError
from sampling.params import SamplingParams
from server.audit.joined import Json, UnreadableReplyError, joined
from server.audit.parameters import RefusedError, sampling_params


class Served(NamedTuple):
    """What the file does not say of the server.

    Attributes:
        defaults: of sampling fields.
        eos_token_ids: the model's ends of text.
        words: token ids of `bad_words`.
        keeps_draws: whether its drafts leave the tokens of a seed as they are; None where it
            drafts nothing.
    """

    defaults: Json
    eos_token_ids: tuple[int, ...]
    words: Callable[[list[str]], Any]
    keeps_draws: bool | None


def read_choices(path: Path, served: Served) -> Iterator[DrawnChoice]:
    """Yield each choice of each line; raises `ConfigError` for a line that is not a pair."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield from _pair(f"{path}, line {number}", number, line, served)


def _pair(where: str, number: int, line: bytes, served: Served) -> Iterator[DrawnChoice]:
    try:
        pair = orjson.loads(line)
        body, reply = pair["request"], joined(pair["response"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        words = 'must be an object with "request" and "response"'
        raise ConfigError(f"{where}: it {words}") from None
    except UnreadableReplyError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not isinstance(body, dict):
        raise ConfigError(f"{where}: the request is no object")
    for choice in reply["choices"]:
        yield _choice(number, body, reply, choice, served)


def _choice(number: int, body: Json, reply: Json, choice: Json, served: Served) -> DrawnChoice:
    index, n = choice.get("index", 0), body.get("n") or 1
    place = {"line": number, "index": index, "choice": index % n}
    try:
        params = sampling_params(body, served.defaults, served.eos_token_ids, served.words)
        _check_drafts(reply, choice, params, served.keeps_draws)
        output = _output(choice)
        return DrawnChoice(
            **place,
            prompt=_prompt(body, reply, choice),
            output=output,
            params=params,
            logprobs=_logprobs(body, choice, len(output)),
        )
    except RefusedError as error:
        nothing = SamplingParams()
        return DrawnChoice(**place, prompt=[], output=[], params=nothing, refusal=str(error))


def _check_drafts(
    reply: Json, choice: Json, params: SamplingParams, keeps_draws: bool | None
) -> None:
    """Raise `RefusedError` where tokens depend on drafts, which no reply has."""
    drafted = bool((reply.get("metrics") or {}).get("num_drafts")) or any(
        origin != "drawn" for origin in choice.get("token_origins") or ()
    )
    if not drafted or params.greedy or keeps_draws:
        return
    if keeps_draws is None:
        raise RefusedError("it was drawn with drafts: give the server's --speculative-config")
    raise RefusedError(
        'drafts were sampled ("gumbel") or accepted at a rate ("synthetic"): tokens depend on '
        'drafts that the reply does not have; draft_sample_method "greedy" and '
        'rejection_sample_method "coupled" draw those of the contract'
    )


def _output(choice: Json) -> list[int]:
    if not isinstance(choice.get("token_ids"), list):
        raise RefusedError("it has no token_ids: ask with return_token_ids")
    return [int(token) for token in choice["token_ids"]]


def _prompt(body: Json, reply: Json, choice: Json) -> list[int]:
    """The prompt's ids: of the choice, of a chat's reply, or of the body."""
    for prompt in (choice.get("prompt_token_ids"), reply.get("prompt_token_ids")):
        if prompt:
            return [int(token) for token in prompt]
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return prompt
    raise RefusedError("it has no prompt_token_ids: ask with return_token_ids")


def _logprobs(body: Json, choice: Json, count: int) -> list[float] | None:
    """Raw logprobs of the drawn tokens, where the reply has them as lists; None else."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict) or body.get("echo"):
        return None
    if logprobs.get("mode", "raw_logprobs") != "raw_logprobs":
        return None
    values = logprobs.get("token_logprobs")
    if isinstance(logprobs.get("tokens"), list) and values is None:
        values = [entry.get("logprob") for entry in logprobs["tokens"] if isinstance(entry, dict)]
    if not isinstance(values, list) or len(values) != count or None in values:
        return None
    return [float(value) for value in values]
