"""What of a request's body decides its tokens, for completions and chats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sampling.params import ParameterError, SamplingParams

Json = dict[str, Any]

NUMBERS = (
    *("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
    "frequency_penalty",
)
UNDERIVED = (
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("thinking_token_budget", "logits_processors", "use_beam_search"),
)
"""Fields whose masks or searches are not in the request itself."""


class RefusedError(ValueError):
    """A choice cannot be audited; the message names why."""


def sampling_params(
    body: Json, defaults: Json, eos_token_ids: tuple[int, ...], words: Callable[[list[str]], Any]
) -> SamplingParams:
    """The parameters of a body.

    Args:
        body: of the request.
        defaults: of the server, for fields that the body leaves out.
        eos_token_ids: the model's ends of text, which `min_tokens` masks.
        words: token ids of `bad_words`.

    Raises:
        RefusedError: something decides tokens that cannot be derived from the body.
    """
    _refuse(body)
    given = {key: value for key, value in {**defaults, **_set(body)}.items() if value is not None}
    values: Json = {name: float(given[name]) for name in NUMBERS if name in given}
    seed = None if given.get("seed") in (None, -1) else int(given["seed"])
    if values.get("temperature", 1.0) > 0.0 and seed is None:
        raise RefusedError("it has no seed: the server drew one, which it does not report")
    ends = () if given.get("ignore_eos") else eos_token_ids
    allowed = given.get("allowed_token_ids")
    try:
        return SamplingParams(
            **values,
            top_k=max(int(given.get("top_k", 0)), 0),
            seed=seed,
            logit_bias={int(key): float(v) for key, v in given.get("logit_bias", {}).items()},
            allowed_token_ids=None if allowed is None else tuple(allowed),
            bad_words=words(given["bad_words"]) if given.get("bad_words") else (),
            min_tokens=int(given.get("min_tokens", 0)),
            stop_token_ids=(*ends, *given.get("stop_token_ids", ())),
        )
    except (ParameterError, TypeError, ValueError) as error:
        raise RefusedError(f"its parameters are out of bounds: {error}") from None


def _set(body: Json) -> Json:
    return {key: value for key, value in body.items() if value is not None}


def _refuse(body: Json) -> None:
    """Raise `RefusedError` for a field whose effect on tokens is not derived."""
    for name in UNDERIVED:
        if body.get(name) not in (None, False):
            raise RefusedError(f"{name}: what it masks is not derived")
    kind = body.get("response_format")
    if isinstance(kind, dict) and kind.get("type") != "text":
        raise RefusedError("response_format: what its grammar masks is not derived")
    if body.get("tools") and body.get("tool_choice") != "none":
        raise RefusedError("tools: what the grammar of calls masks is not derived")
