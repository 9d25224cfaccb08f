"""Schemas said otherwise take what an independent validator takes, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from server.structured.expressed import expressed
from tests.server.structured.checks import checked, matches
from tests.server.structured.values import VALUES

ANY: dict[str, Any] = {"a": {}, "b": {}, "c": {}}
DEFS = {"$defs": {"one": {"const": 1}, "null": {"type": "null"}}}

SAID: list[dict[str, Any]] = [
    {"not": {"type": "null"}},
    {"not": {"type": ["string", "object"], "title": "t"}},
    {"not": {"not": {"type": "integer"}}},
    {"not": {"required": ["a", "b"]}},
    {"not": {"properties": {"a": {"type": "null"}}, "required": ["a"]}},
    {"type": "object", "not": {"properties": {"a": {"not": {"type": "null"}}}}},
    {"not": {"anyOf": [{"type": "null"}, {"required": ["a"]}]}},
    {"not": {"allOf": [{"required": ["a"]}, {"required": ["b"]}]}},
    {"not": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}},
    {"not": {"$ref": "#/$defs/null"}, **DEFS},
    {"type": "integer", "not": {"minimum": 2}},
    {"type": "integer", "not": {"exclusiveMaximum": 2}},
    {"type": "string", "not": {"minLength": 1}},
    {"type": "array", "not": {"maxItems": 1}},
    {"type": "object", "not": {"maxProperties": 1}},
    {"not": {"const": 1}},
    {"not": {"enum": [None, "x", "xyz", 0, 1.5, [], [1, 2], {}]}},
    {"type": "object", "properties": {"a": {"not": {"$ref": "#/$defs/one"}}}, **DEFS},
    {"not": False},
    {"properties": {"a": {"type": "integer"}}, "dependencies": {"a": ["b"]}},
    {"properties": ANY, "dependentRequired": {"a": ["b", "c"]}},
    {"properties": ANY, "dependentSchemas": {"a": {"required": ["b"]}}},
    {
        "properties": ANY,
        "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
        "then": {"required": ["b"]},
        "else": {"required": ["c"]},
    },
    {"properties": ANY, "if": {"type": "object"}, "then": {"required": ["b"]}},
    {"if": {"type": "object"}, "else": {"type": "null"}},
    {"if": {"maxLength": 1}},
    {"if": True, "then": {"type": "object"}, "else": False},
    {"propertyNames": {"pattern": "^[ab]$"}},
    {"propertyNames": {"enum": ["a", "c"], "type": "string", "title": "t"}},
    {"propertyNames": {"const": "a"}},
    {"propertyNames": {"minLength": 1, "maxLength": 1}},
    {"properties": ANY, "minProperties": 1},
    {"properties": ANY, "minProperties": 2, "maxProperties": 2},
    {"properties": ANY, "minProperties": 2, "additionalProperties": False},
    {"properties": ANY, "required": ["a"], "maxProperties": 2},
    {"properties": {"a": {}}, "required": ["b"], "minProperties": 2},
    {"items": {"enum": [1, 2, 3]}, "uniqueItems": True},
    {"items": {"const": 1}, "uniqueItems": True},
    {"type": "array", "maxItems": 1, "uniqueItems": True},
    {"uniqueItems": False},
]


@pytest.mark.parametrize("schema", SAID, ids=json.dumps)
def test_the_same_values_fit(schema: dict[str, Any]) -> None:
    kind = jsonschema.Draft7Validator if "dependencies" in schema else None
    oracle = (kind or jsonschema.Draft202012Validator)(schema)
    said = (kind or jsonschema.Draft202012Validator)(expressed(schema))
    grammar = checked("json", schema)
    assert grammar.ignored == []
    for value in VALUES:
        assert said.is_valid(value) == oracle.is_valid(value), value
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        assert matches(grammar, text) == oracle.is_valid(value), text


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "integer"}},
        {"not": {"pattern": "a"}},
        {"not": {"properties": {"a": {}}, "additionalProperties": False}},
        {"not": {"anyOf": [{"pattern": "a"}]}},
        {"not": {"$ref": "#/$defs/none"}},
        {"not": {"const": {"a": 1}}},
        {"if": {"pattern": "a"}, "then": {"type": "string"}},
        {"propertyNames": {"format": "date"}},
        {"items": {"enum": [1, 2, 3, 4, 5]}, "uniqueItems": True},
        {"items": {"enum": [1, 1.0]}, "uniqueItems": True},
        {"properties": {key: {} for key in "abcdefgh"}, "minProperties": 2},
    ],
    ids=json.dumps,
)
def test_what_cannot_be_said_is_left(schema: dict[str, Any]) -> None:
    assert expressed(schema) == schema


def test_nothing_is_no_opposite() -> None:
    """A schema that nothing fits is refused by the name that it has in the request."""
    schemas: list[Any] = [{}, True, {"minLength": 0}, {"items": {}}]
    for everything in schemas:
        assert expressed({"not": everything}) == {"not": everything}


def test_what_a_reference_names_is_not_said_beside_it() -> None:
    """llguidance takes a schema that holds itself only where nothing is beside the name."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node", "type": "object"}}}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    grammar = checked("json", schema)
    assert matches(grammar, '{"next":{"next":{}}}')
    assert not matches(grammar, '{"next":{"next":1}}')
