"""What of a request's body decides its tokens, for completions and chats."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

from sampling.params import SamplingParams
from server.audit.joined import Json
from server.config import ServerConfig
from server.endpoints.chat.schema import ChatRequest
from server.endpoints.completions.schema import CompletionRequest
from server.errors import ApiError
from server.generation.translation import converted_params, given_params
from server.schema.foreign import validate_adopted

Body = CompletionRequest | ChatRequest


class RefusedError(ValueError):
    """A choice cannot be audited; the message names why."""


class Served(NamedTuple):
    """What the file does not say of the server.

    Attributes:
        config: of its HTTP side, whose defaults hold for what a body leaves out.
        eos_token_ids: the model's ends of text.
        words: token ids of `bad_words`; raises `ApiError`.
        keeps_draws: whether its drafts leave the tokens of a seed as they are; None where it
            drafts nothing.
        accepts_at_rates: it accepts drafts at given rates ("synthetic"), of greedy rows too.
        adapters: names of those that it serves.
    """

    config: ServerConfig
    eos_token_ids: tuple[int, ...]
    words: Callable[[list[str]], tuple[tuple[int, ...], ...]]
    keeps_draws: bool | None
    accepts_at_rates: bool = False
    adapters: frozenset[str] = frozenset()


def read_body(body: Json) -> Body:
    """The request as the server reads it, fields by other servers' names included.

    Raises:
        RefusedError: the server takes no such request.
    """
    kind: type[Body] = ChatRequest if "messages" in body else CompletionRequest
    try:
        return validate_adopted(kind, copy.deepcopy(body), accepts_unknown=True)[0]
    except ApiError as error:
        raise RefusedError(f"the server takes no such request: {error.message}") from None


def sampling_params(body: Body, served: Served) -> SamplingParams:
    """The parameters of a body.

    Raises:
        RefusedError: something decides tokens that cannot be derived from the body.
    """
    if body.model in served.adapters:
        raise RefusedError(f"its model {body.model} is an adapter, whose logits are not computed")
    _refuse(body)
    given = given_params(body, served.eos_token_ids)
    try:
        words = served.words(body.bad_words) if body.bad_words else ()
        params = converted_params(given, words, served.config)
    except ApiError as error:
        raise RefusedError(f"its parameters are out of bounds: {error.message}") from None
    if not params.greedy and params.seed is None:
        raise RefusedError("it has no seed: the server drew one, which it does not report")
    return params


def _refuse(body: Body) -> None:
    """Raise `RefusedError` for a field whose effect on tokens is not derived."""
    for name in ("structured_outputs", "thinking_token_budget"):
        if getattr(body, name) is not None:
            raise RefusedError(f"{name}: what it masks is not derived")
    if body.response_format is not None and body.response_format.type != "text":
        raise RefusedError("response_format: what its grammar masks is not derived")
    if isinstance(body, ChatRequest) and body.tools and body.tool_choice != "none":
        raise RefusedError("tools: what the grammar of calls masks is not derived")
