"""Which grammar a body asks for, and what is wrong with how it asks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.endpoints.completions.schema import CompletionRequest
from server.errors import ApiError
from server.schema.base import validate
from server.structured.spec import COMPACT, WHITESPACE, GrammarSpec
from server.structured.wanted import wanted_grammar
from tests.server.conftest import nested

SCHEMA = {"type": "object"}
TAG = {"begin": "<a>", "schema": SCHEMA, "end": "</a>"}


def wanted(**fields: Any) -> GrammarSpec | None:
    body = validate(CompletionRequest, {"prompt": "x", **fields})
    return wanted_grammar(body.response_format, body.structured_outputs)


def packed(**fields: Any) -> bytes:
    spec = wanted(**fields)
    assert spec is not None
    return spec.packed()


def schema_format(**members: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", **members}}


@pytest.mark.parametrize(
    ("fields", "kind", "value", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json", SCHEMA, "response_format"),
        (
            {"response_format": schema_format(schema=SCHEMA, strict=True, description="d")},
            *("json", SCHEMA, "response_format.json_schema.schema"),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA, "structured_outputs.json"),
        ({"structured_outputs": {"json": "true"}}, "json", True, "structured_outputs.json"),
        (
            {"structured_outputs": {"json_object": True}},
            *("json", SCHEMA, "structured_outputs.json_object"),
        ),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+", "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", ["a"], "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "g"}}, "grammar", "g", "structured_outputs.grammar"),
        (
            {"structured_outputs": {"structural_tag": json.dumps({"format": {"type": "x"}})}},
            *("structural_tag", {"type": "x"}, "structured_outputs.structural_tag.format"),
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "x"}}},
            *("structural_tag", {"type": "x"}, "response_format.format"),
        ),
    ],
)
def test_each_spelling(fields: dict[str, Any], kind: str, value: Any, param: str) -> None:
    spec = wanted(**fields)
    assert spec is not None
    assert (spec.kind, spec.value, spec.param) == (kind, value, param)
    assert (spec.whitespace, spec.lenient) == (WHITESPACE, False)
    assert GrammarSpec.unpacked(spec.packed()) == spec


def test_the_older_tags_become_triggered_ones() -> None:
    spec = wanted(structured_outputs={"structural_tag": {"structures": [TAG], "triggers": ["<"]}})
    assert spec is not None
    content = {"type": "json_schema", "json_schema": SCHEMA}
    tag = {"begin": "<a>", "content": content, "end": "</a>"}
    assert spec.value == {"type": "triggered_tags", "triggers": ["<"], "tags": [tag]}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False, "lenient": True}},
    ],
)
def test_none(fields: dict[str, Any]) -> None:
    assert wanted(**fields) is None


def test_options_hold_for_either_field() -> None:
    options: dict[str, Any] = {"lenient": True, "whitespace_pattern": r"[ \n\x09]{0,3}"}
    for spec in (
        wanted(structured_outputs={"json": {}, **options}),
        wanted(response_format={"type": "json_object"}, structured_outputs=options),
    ):
        assert spec is not None
        assert (spec.lenient, spec.whitespace) == (True, r"[ \n\x09]{0,3}")
    compact = wanted(structured_outputs={"json": {}, "disable_any_whitespace": True})
    assert compact is not None
    assert compact.whitespace == COMPACT


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format", "json_object"),
        ({"response_format": "json"}, "response_format", "an object"),
        (
            {"response_format": {"type": "json_schema"}},
            *("response_format.json_schema", "is required"),
        ),
        (
            {"response_format": schema_format()},
            *("response_format.json_schema.schema", "is required"),
        ),
        (
            {"response_format": schema_format(schema=5)},
            *("response_format.json_schema.schema", "a JSON schema"),
        ),
        (
            {"response_format": {**schema_format(schema={}), "type": "json_object"}},
            *("response_format.json_schema", 'needs the type "json_schema"'),
        ),
        (
            {
                "response_format": {"type": "json_object"},
                "structured_outputs": {"regex": "a"},
            },
            *("structured_outputs.regex", "got response_format and structured_outputs.regex"),
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            *("structured_outputs.choice", "structured_outputs.regex and"),
        ),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "must be JSON"),
        ({"structured_outputs": {"json": "5"}}, "structured_outputs.json", "a JSON schema"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
        (
            {"structured_outputs": {"choice": ["x" * 2**18, "y"]}},
            *("structured_outputs.choice", "at most 262144 characters"),
        ),
        (
            {"structured_outputs": {"regex": "a" * 10**6}},
            *("structured_outputs.regex", "at most 65536"),
        ),
        (
            {"structured_outputs": {"json": {"enum": ["x" * 2**19]}}},
            *("structured_outputs.json", "at most 524288 bytes"),
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": r"\s*"}},
            *("structured_outputs.whitespace_pattern", "spaces"),
        ),
        (
            {"structured_outputs": {"whitespace_pattern": " ", "disable_any_whitespace": True}},
            *("structured_outputs.whitespace_pattern", "contradicts"),
        ),
        (
            {"response_format": {"type": "structural_tag", "structures": [TAG], "triggers": ["["]}},
            *("response_format.structures[0].begin", "one of response_format.triggers"),
        ),
        (
            {"structured_outputs": {"json": nested(300)}},
            *("structured_outputs.json", "nested too deep"),
        ),
        (
            {"structured_outputs": {"structural_tag": {"triggers": ["<"]}}},
            *("structured_outputs.structural_tag", "needs structures"),
        ),
        (
            {"structured_outputs": {"structural_tag": {}}},
            *("structured_outputs.structural_tag", "needs either"),
        ),
        (
            {"structured_outputs": {"disable_additional_properties": True}},
            *("structured_outputs.disable_additional_properties", "not available yet"),
        ),
        ({"guided_json": {}}, "guided_json", "use structured_outputs.json"),
        ({"guided_choice": ["a"]}, "guided_choice", "use structured_outputs.choice"),
        ({"structural_tag": {}}, "structural_tag", "use structured_outputs.structural_tag"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else None,
)
def test_bad_wishes(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        packed(**fields)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert words in caught.value.message
