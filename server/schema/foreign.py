"""Fields of a request that other servers have: brought to our own, or accepted without effect.

Only what a body has that its type does not know comes here, so a body of our own fields costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson

from server.errors import bad_request
from server.schema.base import Body, shown, validate
from server.schema.template import thinking_switches

WITHOUT_EFFECT = frozenset(
    (
        *("cache_prompt", "chat_id", "id_slot", "keep_alive", "models", "n_keep", "plugins"),
        *("provider", "return_progress", "rid", "route", "slot_id", "timings_per_token"),
        *("tool_stream", "transforms", "usage"),
    )
)
"""Where to run, what to keep, what to report beside: of llama.cpp, Ollama, OpenRouter, SGLang,
Z.ai and Open WebUI. None of them changes what is drawn."""
OFF: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("custom_logit_processor", "custom_params", "data_parallel_rank"), ()),
    **dict.fromkeys(("input_ids", "lora_path", "mm_processor_kwargs", "prompt_mode"), ()),
    **dict.fromkeys(("stop_regex",), ()),
    **dict.fromkeys(("enable_search", "no_stop_trim", "return_hidden_states"), (False,)),
    **dict.fromkeys(("return_routed_experts", "safe_prompt"), (False,)),
    **dict.fromkeys(("incremental_output", "parse_tool_calls"), (True,)),
    **dict.fromkeys(("dry_multiplier", "dynatemp_range", "epsilon_cutoff", "eta_cutoff"), (0,)),
    **dict.fromkeys(("mirostat", "top_a", "xtc_probability"), (0,)),
    **dict.fromkeys(("repeat_penalty", "tfs_z", "typical_p"), (1,)),
    "top_n_sigma": (-1,),
}
"""What is not done here, with the values beside null that ask for nothing: of llama.cpp, SGLang,
Mistral, DashScope and text-generation-webui, whose clients send them where nobody set them."""
MAX_NAMES = 20
"""Names without effect that are reported."""
_MAX_CHARS = 64

Fields = dict[str, Any]


def decode_adopted(
    kind: type[Body], raw: bytes, accepts_unknown: bool = False
) -> tuple[Body, list[str]]:
    """A body of the given kind, and the names of fields that had no effect.

    Args:
        accepts_unknown: fields that nobody knows have none; else they are refused.

    Raises:
        ApiError: as `decode`.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(None, f"the body is not valid JSON: {error}", "invalid_json") from None
    return validate_adopted(kind, value, accepts_unknown)


def validate_adopted(
    kind: type[Body], value: Any, accepts_unknown: bool = False
) -> tuple[Body, list[str]]:
    """The same of parsed JSON."""
    known = kind.model_fields
    names: list[str] = []
    if isinstance(value, dict) and not value.keys() <= known.keys():
        names = adopt(value, known, accepts_all=accepts_unknown)
    return validate(kind, value), names


def adopt(body: Fields, known: Collection[str], *, accepts_all: bool = False) -> list[str]:
    """Bring fields that a body's type does not know to those that it knows, in place.

    Args:
        known: the names that it knows.
        accepts_all: whatever is left is accepted too.

    Returns:
        The names that have no effect, `MAX_NAMES` at most, in their order.

    Raises:
        ApiError: a field has a value that cannot be brought to ours.
    """
    without_effect = []
    for name in [name for name in body if name not in known]:
        adopted = _ADOPTED.get(name)
        if adopted is not None and adopted[0] in known:
            value = body.pop(name)
            if value is not None:
                adopted[1](body, name, value)
        elif name in WITHOUT_EFFECT or accepts_all or _is_off(name, body[name]):
            del body[name]
            without_effect.append(name)
    return [name for name in without_effect if _is_plain(name)][:MAX_NAMES]


def _is_off(name: str, value: Any) -> bool:
    """Whether a field of what is not done here does not ask for it."""
    values = OFF.get(name)
    if values is None or isinstance(value, dict | list):
        return False
    is_bool = isinstance(value, bool)
    return value is None or any(value == off and is_bool == isinstance(off, bool) for off in values)


def _is_plain(name: str) -> bool:
    """Whether a name may be in a header."""
    return len(name) <= _MAX_CHARS and name.isascii() and name.isprintable() and "," not in name


def _set(body: Fields, target: str, name: str, value: Any) -> None:
    """Set our own field, which must not say otherwise."""
    if body.get(target) not in (None, value):
        raise bad_request(
            name, f"{name} must equal {target} where both are given, got {shown(value)}"
        )
    body[target] = value


def _thinking(body: Fields, name: str, value: Any) -> None:
    """A switch: true, or an object as Anthropic and others have it."""
    given = value
    if isinstance(value, Mapping) and value.get("type") in ("enabled", "disabled", "adaptive"):
        value = value["type"] != "disabled"
    if not isinstance(value, bool):
        raise bad_request(
            name, f'{name} must be true, false or {{"type": "enabled"}}, got {shown(given)}'
        )
    variables = body.get("chat_template_kwargs")
    variables = {} if variables is None else variables
    if isinstance(variables, dict):  # else its own field is refused
        body["chat_template_kwargs"] = thinking_switches(on=value) | variables
    if isinstance(given, Mapping) and given.get("budget_tokens") is not None:
        _set(body, "thinking_token_budget", f"{name}.budget_tokens", given["budget_tokens"])


def _reasoning(body: Fields, name: str, value: Any) -> None:
    """As OpenRouter has it, and OpenAI's Responses."""
    known = {"effort", "enabled", "exclude", "max_tokens", "summary"}
    if not isinstance(value, Mapping) or value.keys() - known:
        raise bad_request(
            name, f"{name} must be an object of {', '.join(sorted(known))}, got {shown(value)}"
        )
    if value.get("effort") is not None:
        _set(body, "reasoning_effort", f"{name}.effort", value["effort"])
    if value.get("enabled") is not None:
        _thinking(body, f"{name}.enabled", value["enabled"])
    if value.get("max_tokens") is not None:
        _set(body, "thinking_token_budget", f"{name}.max_tokens", value["max_tokens"])
    if (excludes := value.get("exclude")) is not None:
        if not isinstance(excludes, bool):
            words = f"{name}.exclude must be true or false, got {shown(excludes)}"
            raise bad_request(f"{name}.exclude", words)
        _set(body, "include_reasoning", f"{name}.exclude", not excludes)


def _reasoning_format(body: Fields, name: str, value: Any) -> None:
    """Where thoughts go, as Groq and llama.cpp have it."""
    if value in ("hidden", "none", "raw"):
        target = "include_reasoning" if value == "hidden" else "separate_reasoning"
        _set(body, target, name, False)
    elif value not in ("auto", "deepseek", "parsed"):
        raise bad_request(
            name,
            f'{name} must be "auto", "deepseek", "parsed", "hidden", "none" or "raw", '
            f"got {shown(value)}",
        )


def _think(body: Fields, name: str, value: Any) -> None:
    """As Ollama has it: a switch, or how much."""
    if isinstance(value, str):
        _set(body, "reasoning_effort", name, value)
    else:
        _thinking(body, name, value)


def _renamed(target: str) -> Callable[[Fields, str, Any], None]:
    return lambda body, name, value: _set(body, target, name, value)


def _grammar(kind: str) -> Callable[[Fields, str, Any], None]:
    """A grammar that another server has as a field of its own."""

    def adopt_grammar(body: Fields, name: str, value: Any) -> None:
        if body.get("structured_outputs") is not None:
            raise bad_request(name, f"{name} must be left out where structured_outputs is given")
        body["structured_outputs"] = {kind: value}

    return adopt_grammar


def _functions(body: Fields, name: str, value: Any) -> None:
    """The list that tools replaced: an empty one says nothing."""
    if value != []:
        raise bad_request(name, f"{name} must be null or []: use tools, got {shown(value)}")


_ADOPTED: Mapping[str, tuple[str, Callable[[Fields, str, Any], None]]] = {
    "enable_thinking": ("chat_template_kwargs", _thinking),
    "thinking": ("chat_template_kwargs", _thinking),
    "think": ("chat_template_kwargs", _think),
    "reasoning": ("reasoning_effort", _reasoning),
    "reasoning_format": ("separate_reasoning", _reasoning_format),
    "random_seed": ("seed", _renamed("seed")),
    "regex": ("structured_outputs", _grammar("regex")),
    "ebnf": ("structured_outputs", _grammar("grammar")),
    "grammar": ("structured_outputs", _grammar("grammar")),
    "json_schema": ("structured_outputs", _grammar("json")),
    "n_predict": ("max_tokens", _renamed("max_tokens")),
    "functions": ("tools", _functions),
}
"""By the name elsewhere: a field of ours that a body's type must know for it, and what is done."""

NAMES = WITHOUT_EFFECT | OFF.keys() | _ADOPTED.keys()
"""All names that may be brought to ours or have no effect."""
