"""Which keyword of a schema is refused, and schemas without what cannot be enforced."""

from __future__ import annotations

from typing import Any

import pytest

from server.errors import ApiError
from tests.server.structured.checks import checked, matches

DISJOINT = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
OVERLAPPING = {"oneOf": [{"type": "object"}, {"properties": {"a": {}}, "type": "object"}]}


def inside(schema: Any) -> dict[str, Any]:
    """The schema deep within another."""
    return {"type": "object", "properties": {"a": {"type": "array", "items": schema}}}


def refused(schema: Any, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        checked("json", schema, **options)
    assert caught.value.status == 400
    assert len(caught.value.message) < 700
    return caught.value


NOT_ENFORCED = [
    ("not", {"not": {"const": 1}}),
    ("if", {"if": {"type": "string"}}),
    ("uniqueItems", {"type": "array", "uniqueItems": True}),
    ("contains", {"type": "array", "contains": {"type": "null"}}),
    ("propertyNames", {"type": "object", "propertyNames": {"pattern": "^a"}}),
    ("unevaluatedProperties", {"type": "object", "unevaluatedProperties": False}),
    ("pattern", {"type": "string", "pattern": "(?=a)b"}),
    ("oneOf", OVERLAPPING),
    ("patternProperties", {"type": "object", "patternProperties": {"a": {}, "b": {}}}),
    ("minProperties", {"type": "object", "properties": {"x": {}, "y": {}}, "minProperties": 2}),
]


@pytest.mark.parametrize(("keyword", "schema"), NOT_ENFORCED)
def test_a_keyword_is_named_with_its_place(keyword: str, schema: dict[str, Any]) -> None:
    assert refused(schema).param == f"here.{keyword}"
    error = refused(inside(schema))
    assert error.param == f"here.properties.a.items.{keyword}"
    assert error.message.startswith(f"{error.param} cannot be enforced")
    assert "lenient" in error.message


@pytest.mark.parametrize(("keyword", "schema"), NOT_ENFORCED)
def test_lenient_drops_it_and_says_so(keyword: str, schema: dict[str, Any]) -> None:
    grammar = checked("json", inside(schema), lenient=True)
    assert grammar.ignored == [f"here.properties.a.items.{keyword}"]
    assert matches(grammar, '{"a":[]}')


def test_lenient_drops_all_of_them() -> None:
    schema = {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/tag"}},
            "ids": {"type": "array", "uniqueItems": True, "contains": {"const": 1}},
            "kind": OVERLAPPING,
        },
        "$defs": {"tag": {"type": "string", "format": "tag", "maxLength": 2}},
        "additionalProperties": False,
    }
    grammar = checked("json", schema, lenient=True)
    assert sorted(grammar.ignored) == [
        "here.$defs.tag.format",
        "here.properties.ids.contains",
        "here.properties.ids.uniqueItems",
        "here.properties.kind.oneOf",
        "here.properties.tags.uniqueItems",
    ]
    assert matches(grammar, '{"tags":["a","a"],"kind":{}}')
    assert not matches(grammar, '{"tags":["abc"]}')
    assert not matches(grammar, '{"kind":5}')


def test_what_can_be_enforced_is_left_alone() -> None:
    grammar = checked("json", inside(DISJOINT), lenient=True)
    assert grammar.ignored == []
    assert not matches(grammar, '{"a":[null]}')


def test_a_definition_is_to_blame_and_not_what_refers_to_it() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/b"}},
        "$defs": {"b": {"type": "array", "uniqueItems": True}},
    }
    assert refused(schema).param == "here.$defs.b.uniqueItems"


@pytest.mark.parametrize(
    ("schema", "param", "words"),
    [
        (False, "here", "no text matches"),
        ({"type": "strin"}, "here.type", "strin"),
        ({"type": 5}, "here.type", "type must be"),
        ({"properties": 5}, "here.properties", "object"),
        ({"required": "a"}, "here.required", "array"),
        ({"minLength": "a"}, "here.minLength", "integer"),
        ({"enum": {}}, "here.enum", "array"),
        ({"anyOf": [5]}, "here.anyOf", "object or boolean"),
        ({"type": "integer", "enum": ["a", "b"]}, "here.enum", "Unsatisfiable"),
        ({"type": "string", "const": 1}, "here.const", "Unsatisfiable"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "here.minLength", "maxLength (3)"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "here.allOf", "Unsatisfiable"),
        ({"enum": []}, "here.enum", "empty"),
        ({"$ref": "#/$defs/none"}, "here.$ref", "none"),
        ({"$ref": "http://example.com/schema"}, "here.$ref", "example.com"),
    ],
)
def test_mistakes_are_refused_however_lenient(schema: Any, param: str, words: str) -> None:
    for lenient in (False, True):
        error = refused(schema, lenient=lenient)
        assert error.param == param
        assert words in error.message
        assert "cannot be enforced" not in error.message


def test_a_schema_nested_too_deep() -> None:
    schema: dict[str, Any] = {}
    for _ in range(60):
        schema = {"properties": {"a": schema}}
    assert "100 levels" in refused(schema).message


def test_a_wide_schema_is_searched_for_a_while_only() -> None:
    """The message stands without a place where that would take long to find."""
    members = {f"m{i}": {"type": "string", "pattern": f"^[a-z]{{{i % 50}}}$"} for i in range(2000)}
    error = refused({"type": "object", "properties": {**members, "last": {"not": {}}}})
    assert error.param in ("here", "here.properties.last.not")
    assert "not" in error.message


def test_lenient_drops_a_keyword_within_itself() -> None:
    schema = {"type": "object", "not": {"properties": {"a": {"not": {"const": 1}}}, "items": {}}}
    grammar = checked("json", schema, lenient=True)
    assert grammar.ignored == ["here.not.properties.a.not", "here.not"]
    assert matches(grammar, "{}")


def test_a_format_that_nobody_knows_is_dropped_behind_a_reference() -> None:
    schema = {
        "anyOf": [{"$ref": "#/$defs/raw"}, {"type": "null"}],
        "$defs": {"raw": {"type": "string", "format": "byte", "maxLength": 2}},
    }
    grammar = checked("json", schema)
    assert grammar.ignored == ["here.$defs.raw.format"]
    assert matches(grammar, '"ab"')
    assert not matches(grammar, '"abc"')
