"""Members of `oneOf` kept apart: nothing that fits two members, or none, gets through."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

from server.structured.one_of import exclusive
from tests.server.structured.checks import checked, matches

KEYS = ("a", "b", "c", "k")
OBJECTS = [
    dict(zip(keys, values, strict=True))
    for count in range(4)
    for keys in itertools.combinations(KEYS, count)
    for values in itertools.product([1, 2, None], repeat=count)
]
VALUES: list[Any] = [None, 1, 1.5, "x", "y", [], [1], *OBJECTS]
DEFS = {"definitions": {"word": {"type": "string", "enum": ["x", "y"]}, "deep": {"type": "array"}}}
ANY: dict[str, Any] = {key: {} for key in KEYS}

EXACT: list[dict[str, Any]] = [
    {"oneOf": [{"$ref": "#/definitions/word"}, {"type": "null"}], **DEFS},
    {
        "oneOf": [{"$ref": "#/definitions/word"}, {"allOf": [{"$ref": "#/definitions/deep"}]}],
        **DEFS,
    },
    {"oneOf": [{"enum": [1, "x"]}, {"const": "y"}, {"type": "null"}]},
    {"type": "object", "properties": ANY, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"properties": ANY, "oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}]},
    {"properties": ANY, "oneOf": [{"required": ["a"]}, {"required": ["a", "b"]}]},
    {
        "properties": ANY,
        "required": ["a"],
        "oneOf": [{"required": [key]} for key in ("b", "c", "k")],
    },
    {
        "oneOf": [
            {"type": "object", "properties": {"a": {"const": 1}, "b": {}}, "required": ["a"]},
            {"type": "object", "properties": {"a": {"const": 2}, "c": {}}, "required": ["a"]},
        ]
    },
    {
        "oneOf": [
            {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]},
            {"type": "object", "properties": {"c": {}}, "additionalProperties": False},
        ]
    },
    {"oneOf": [{"required": ["a"], "properties": {"b": {"const": 1}}}, {"required": ["a"]}]},
    {"oneOf": [{"const": 1}, {"enum": [1.0, 2]}]},
    {"oneOf": [{"enum": [1, 2, "x", None]}, {"type": "integer", "maximum": 1.5}, {"const": None}]},
    {"oneOf": [{"enum": ["x", "xy"]}, {"type": "string", "pattern": "^x.$"}]},
    {"type": "string", "oneOf": [{"maxLength": 0}, {"minLength": 1, "pattern": "^y?$"}]},
    {
        "type": "object",
        "properties": ANY,
        "oneOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 1}}}],
    },
    {
        "type": "object",
        "oneOf": [
            {"properties": {"a": {}}, "additionalProperties": False},
            {"properties": {"b": {}}, "additionalProperties": False},
        ],
    },
    {
        "properties": ANY,
        "anyOf": [{"required": ["c"]}, {"required": ["k"]}],
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    {"oneOf": [{"type": "null"}, {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}]},
]


@pytest.mark.parametrize("schema", EXACT, ids=json.dumps)
def test_members_that_exclude_one_another(schema: dict[str, Any]) -> None:
    oracle, said = (jsonschema.Draft202012Validator(each) for each in (schema, exclusive(schema)))
    assert "oneOf" not in exclusive(schema)
    grammar = checked("json", schema)
    assert grammar.ignored == []
    for value in VALUES:
        assert said.is_valid(value) == oracle.is_valid(value), value
        if matches(grammar, json.dumps(value, separators=(",", ":"))):  # keys have an order
            assert oracle.is_valid(value), value


def test_members_that_may_overlap_go_without_what_the_others_require() -> None:
    number = {"type": "number"}
    schema = {
        "type": "object",
        "oneOf": [
            {"properties": {"a": number}, "required": ["a"]},
            {"properties": {"b": number, "c": number}, "required": ["b", "c"]},
        ],
    }
    grammar, oracle = checked("json", schema), jsonschema.Draft202012Validator(schema)
    for value in OBJECTS:
        if matches(grammar, json.dumps(value, separators=(",", ":"))):
            assert oracle.is_valid(value), value
    for text in ('{"a":1}', '{"b":1,"c":2}', '{"a":1,"b":2}', '{"a":1,"c":2}'):
        assert matches(grammar, text), text
    # It fits the first alone, since "b" is no number; it is the one kind that is left out.
    assert oracle.is_valid({"a": 1, "b": None, "c": 1})
    assert not matches(grammar, '{"a":1,"b":null,"c":1}')


@pytest.mark.parametrize("key", ["anyOf", "oneOf"])
def test_types_within_a_member_tell_it_apart_from_another(key: str) -> None:
    """Members that no value fits both of stay as they are: nothing is said a second time."""
    date = {"type": "string", "format": "date"}
    of_dates: dict[str, Any] = {"type": "object", "properties": {"a": date}}
    either: dict[str, Any] = {key: [date, {"type": "null"}]}
    assert exclusive({"oneOf": [either, of_dates]}) == {"anyOf": [exclusive(either), of_dates]}


@pytest.mark.parametrize(
    "members",
    [
        [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}],
        [{"type": "number"}, {"type": "integer"}],
        [{"type": "object"}, {"type": "object", "properties": {"a": {}}}],
        [{"const": "a+"}, {"pattern": "(?:a)"}],
        [{"$ref": "#/definitions/none"}, {"type": "null"}],
    ],
)
def test_what_may_overlap_otherwise_is_left(members: list[Any]) -> None:
    schema = {"oneOf": members}
    assert exclusive(schema) == schema


def test_a_choice_with_too_many_ways_is_left() -> None:
    schema = {
        "type": "object",
        "oneOf": [{"required": [f"{i}{key}" for key in "abc"]} for i in range(8)],
    }
    assert exclusive(schema) == schema
