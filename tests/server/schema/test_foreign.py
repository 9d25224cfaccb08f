"""Fields of other servers: brought to ours, without effect, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from server.endpoints.chat.schema import ChatRequest
from server.endpoints.completions.schema import CompletionRequest
from server.errors import ApiError
from server.schema.foreign import MAX_NAMES, validate_adopted
from server.structured.wanted import wanted_grammar

MESSAGES = [{"role": "user", "content": "a"}]


def read(accepts_unknown: bool = False, **fields: Any) -> tuple[ChatRequest, list[str]]:
    return validate_adopted(ChatRequest, {"messages": MESSAGES, **fields}, accepts_unknown)


@pytest.mark.parametrize(
    ("fields", "ours", "value"),
    [
        (
            {"enable_thinking": False},
            "chat_template_kwargs",
            {"enable_thinking": False, "thinking": False},
        ),
        (
            {"thinking": {"type": "enabled"}},
            "chat_template_kwargs",
            {"enable_thinking": True, "thinking": True},
        ),
        (
            {"thinking": True, "chat_template_kwargs": {"thinking": False, "x": 1}},
            "chat_template_kwargs",
            {"enable_thinking": True, "thinking": False, "x": 1},
        ),
        ({"reasoning": {"effort": "high"}}, "reasoning_effort", "high"),
        ({"reasoning": {"exclude": True}}, "include_reasoning", False),
        (
            {"reasoning": {"enabled": False}},
            "chat_template_kwargs",
            {"enable_thinking": False, "thinking": False},
        ),
        ({"reasoning": {"max_tokens": 5}}, "thinking_token_budget", 5),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking_token_budget", 5),
        ({"think": False}, "chat_template_kwargs", {"enable_thinking": False, "thinking": False}),
        ({"think": "low"}, "reasoning_effort", "low"),
        ({"reasoning_format": "hidden"}, "include_reasoning", False),
        ({"reasoning_format": "none"}, "separate_reasoning", False),
        ({"reasoning_format": "parsed"}, "separate_reasoning", None),
        ({"n_predict": 5}, "max_tokens", 5),
        ({"random_seed": 5}, "seed", 5),
        ({"functions": []}, "tools", None),
        ({"thinking": None, "regex": None}, "chat_template_kwargs", None),
    ],
)
def test_what_we_do_too_has_our_name(fields: dict[str, Any], ours: str, value: Any) -> None:
    body, without_effect = read(**fields)
    assert getattr(body, ours) == value
    assert without_effect == []


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("regex", "a+", "regex"),
        ("ebnf", 'root ::= "a"', "grammar"),
        ("grammar", 'root ::= "a"', "grammar"),
        ("json_schema", {"type": "object"}, "json"),
    ],
)
def test_grammars(field: str, value: Any, kind: str) -> None:
    body, _ = read(**{field: value})
    assert body.structured_outputs is not None
    assert body.structured_outputs.model_dump(by_alias=True, exclude_none=True) == {kind: value}
    with pytest.raises(ApiError, match=f"{field} must be left out"):
        read(**{field: value, "structured_outputs": {"regex": "b"}})
    completion, _ = validate_adopted(CompletionRequest, {"prompt": "a", field: value})
    assert completion.structured_outputs is not None


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object", "schema": {"type": "array"}},
        {"type": "json_object", "value": {"type": "array"}},
        {"type": "json", "value": {"type": "array"}},
        {"type": "json_schema", "schema": {"type": "array"}},
    ],
)
def test_schemas_of_response_formats(form: dict[str, Any]) -> None:
    spec = wanted_grammar(read(response_format=form)[0].response_format, None)
    assert spec is not None
    assert (spec.kind, spec.value) == ("json", {"type": "array"})


def test_an_expression_as_a_response_format() -> None:
    spec = wanted_grammar(
        read(response_format={"type": "regex", "value": "a+"})[0].response_format, None
    )
    assert spec is not None
    assert (spec.kind, spec.value) == (
        "structural_tag",
        {"type": "regex", "pattern": "a+"},
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"thinking": "yes"}, "thinking must be true, false or"),
        ({"reasoning": {"tokens": 5}}, "reasoning must be an object of effort, enabled"),
        ({"reasoning": {"exclude": "false"}}, "reasoning.exclude must be true or false, got"),
        ({"reasoning_format": "xml"}, 'reasoning_format must be "auto", "deepseek"'),
        (
            {"reasoning": {"effort": "low"}, "reasoning_effort": "high"},
            "reasoning.effort must equal",
        ),
        ({"n_predict": 5, "max_tokens": 6}, "n_predict must equal max_tokens"),
        ({"functions": [{"name": "f"}]}, "functions must be null or"),
        ({"typical_p": 0.5}, "unknown field 'typical_p'"),
        ({"typical_p": True}, "unknown field 'typical_p'"),
        ({"return_hidden_states": 0}, "unknown field 'return_hidden_states'"),
        ({"lora_path": "x"}, "unknown field 'lora_path'"),
        ({"mirostat": [0]}, "unknown field 'mirostat'"),
    ],
)
def test_what_cannot_be_brought_to_ours(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError, match=words):
        read(**fields)


def test_what_has_no_effect_is_named() -> None:
    body, without_effect = read(cache_prompt=True, keep_alive="5m", provider={"order": []}, seed=3)
    assert without_effect == ["cache_prompt", "keep_alive", "provider"]
    assert body.seed == 3


def test_what_is_not_done_may_be_off() -> None:
    """Clients send all that they have, as it is set by default."""
    asked: dict[str, Any] = {
        "typical_p": 1.0,
        "mirostat": 0,
        "lora_path": None,
        "return_hidden_states": False,
    }
    _, without_effect = read(**asked)
    assert without_effect == list(asked)


def test_all_may_be_accepted() -> None:
    odd = {"a,b": 1, "ü": 1, "x" * 65: 1, **{f"n{i}": i for i in range(MAX_NAMES + 5)}}
    body, without_effect = read(accepts_unknown=True, temperature=0.5, **odd)
    assert without_effect == [f"n{i}" for i in range(MAX_NAMES)]
    assert body.temperature == 0.5


def test_a_field_of_our_own_is_never_another_s() -> None:
    """Completions have no template, so its switches are unknown there."""
    with pytest.raises(ApiError, match="unknown field 'enable_thinking'"):
        validate_adopted(CompletionRequest, {"prompt": "a", "enable_thinking": True})
