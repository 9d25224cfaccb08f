"""Which keyword of a schema is refused, and schemas without what cannot be enforced."""

from __future__ import annotations

import contextlib
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
    ("not", {"not": {"pattern": "a"}}),
    ("if", {"if": {"pattern": "a"}, "then": {"type": "string"}}),
    ("uniqueItems", {"type": "array", "uniqueItems": True}),
    ("contains", {"type": "array", "contains": {"type": "null"}}),
    ("propertyNames", {"type": "object", "propertyNames": {"format": "date"}}),
    ("unevaluatedProperties", {"type": "object", "unevaluatedProperties": False}),
    ("pattern", {"type": "string", "pattern": "(?=a)b"}),
    ("oneOf", OVERLAPPING),
    ("patternProperties", {"type": "object", "patternProperties": {"a": {}, "b": {}}}),
    ("minProperties", {"properties": {f"x{i}": {} for i in range(9)}, "minProperties": 2}),
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
    keywords = [keyword, "then"] if keyword == "if" else [keyword]
    assert grammar.ignored == [f"here.properties.a.items.{each}" for each in keywords]
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


KEYWORDS = (
    *("type", "enum", "const", "not", "oneOf", "anyOf", "allOf", "if", "then", "$ref", "pattern"),
    *("required", "properties", "dependencies", "propertyNames", "minProperties", "maxProperties"),
    *("minLength", "maximum", "uniqueItems", "items", "additionalProperties", "patternProperties"),
)
ODD: list[Any] = [None, True, -1, 1.5, 1e400, "a", [], {}, [None], ["a"], [{}], {"a": 1}, {"a": {}}]


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_keywords_of_any_kind_are_taken_or_refused(keyword: str) -> None:
    """Nothing else is raised, whatever is where a schema, a name or a number should."""
    for value in ODD:
        odd = {keyword: value, "maxProperties": 1, "properties": {"a": {}}}
        names = {"propertyNames": odd, "dependencies": {"a": odd}, "uniqueItems": True}
        choice = {"oneOf": [odd, {"enum": ["a", 1, None]}, {"type": "object", "required": ["a"]}]}
        for schema in ({"if": odd, "else": {"not": odd}, **choice}, {**names, "items": odd}):
            with contextlib.suppress(ApiError):
                checked("json", schema)


def test_a_schema_nested_too_deep() -> None:
    schema: dict[str, Any] = {}
    for _ in range(60):
        schema = {"properties": {"a": schema}}
    assert "100 levels" in refused(schema).message


def test_a_wide_schema_is_searched_for_a_while_only() -> None:
    """The message is without a place where that would take long to find."""
    members = {f"m{i}": {"type": "string", "pattern": f"^[a-z]{{{i % 50}}}$"} for i in range(2000)}
    error = refused(
        {"type": "object", "properties": {**members, "last": {"not": {"pattern": "x"}}}}
    )
    assert error.param in ("here", "here.properties.last.not")
    assert "not" in error.message


def test_lenient_drops_a_keyword_within_itself() -> None:
    schema = {"not": {"properties": {"a": {"not": {"pattern": "a"}}}, "pattern": "b"}}
    grammar = checked("json", schema, lenient=True)
    assert grammar.ignored == ["here.not.properties.a.not", "here.not"]
    assert matches(grammar, "{}")


def test_what_is_wrong_is_named_where_it_is_and_not_where_it_is_referred_to() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/definitions/b"}, "c": {"$ref": "#/definitions/b"}},
        "definitions": {"b": {"type": "string", "pattern": "(?!a)b"}},
    }
    assert refused(schema).param == "here.definitions.b.pattern"
    assert checked("json", schema, lenient=True).ignored == ["here.definitions.b.pattern"]


def test_what_can_be_said_otherwise_is_not_blamed() -> None:
    """The refusal names what is left when the other keywords are said in others."""
    schema = {
        "properties": {"a": {}, "b": {"type": "array", "uniqueItems": True}},
        "dependencies": {"a": ["b"]},
        "not": {"required": ["c"]},
    }
    assert refused(schema).param == "here.properties.b.uniqueItems"
    assert checked("json", schema, lenient=True).ignored == ["here.properties.b.uniqueItems"]


def test_a_schema_that_holds_itself_loses_what_stands_beside_its_name() -> None:
    node = {"properties": {"next": {"$ref": "#/$defs/node", "required": ["a"]}}}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    assert refused(schema).param == "here.$defs.node.properties.next.$ref"
    grammar = checked("json", schema, lenient=True)
    assert grammar.ignored == ["here.$defs.node.properties.next.required"]
    assert matches(grammar, '{"next":{"next":{}}}')


def test_only_choices_that_cannot_be_kept_apart_are_read_leniently() -> None:
    schema = {
        "$ref": "#/$defs/both",
        "$defs": {
            "apart": {"oneOf": [{"type": "object", "required": ["a"]}, {"required": ["b"]}]},
            "both": {"properties": {"k": OVERLAPPING, "l": {"$ref": "#/$defs/apart"}}},
        },
    }
    grammar = checked("json", schema, lenient=True)
    assert grammar.ignored == ["here.$defs.both.properties.k.oneOf"]
    assert not matches(grammar, '{"l":{"a":1,"b":1}}')


def test_a_format_that_nobody_knows_is_dropped_behind_a_reference() -> None:
    schema = {
        "anyOf": [{"$ref": "#/$defs/raw"}, {"type": "null"}],
        "$defs": {"raw": {"type": "string", "format": "byte", "maxLength": 2}},
    }
    grammar = checked("json", schema)
    assert grammar.ignored == ["here.$defs.raw.format"]
    assert matches(grammar, '"ab"')
    assert not matches(grammar, '"abc"')
