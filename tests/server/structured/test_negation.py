"""Schemas said otherwise take what an independent validator takes, and nothing else."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

from server.structured.negation import expressed, negated
from tests.server.structured.checks import checked, matches

OBJECTS = [
    dict(zip(keys, values, strict=True))
    for count in range(4)
    for keys in itertools.combinations("abc", count)
    for values in itertools.product([1, None], repeat=count)
]
VALUES: list[Any] = [None, True, 1, 2, 1.5, "", "x", [], [1], [1, 2], *OBJECTS]

SAID: list[dict[str, Any]] = [
    {"not": {"type": "null"}},
    {"not": {"type": ["string", "object"], "title": "t"}},
    {"not": {"not": {"type": "integer"}}},
    {"not": {"required": ["a", "b"]}},
    {"not": {"properties": {"a": {"type": "null"}}, "required": ["a"]}},
    {"type": "object", "not": {"properties": {"a": {"not": {"type": "null"}}}}},
    {"not": {"anyOf": [{"type": "null"}, {"required": ["a"]}]}},
    {"not": {"allOf": [{"required": ["a"]}, {"required": ["b"]}]}},
    {"type": "integer", "not": {"minimum": 2}},
    {"type": "integer", "not": {"exclusiveMaximum": 2}},
    {"type": "string", "not": {"minLength": 1}},
    {"type": "array", "not": {"maxItems": 1}},
    {"type": "object", "not": {"maxProperties": 1}},
    {"not": False},
    {"properties": {"a": {"type": "integer"}}, "dependencies": {"a": ["b"]}},
    {"properties": {"a": {}, "b": {}, "c": {}}, "dependentRequired": {"a": ["b", "c"]}},
    {"properties": {"a": {}, "b": {}}, "dependentSchemas": {"a": {"required": ["b"]}}},
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
        text = json.dumps(value, separators=(",", ":"))
        assert matches(grammar, text) == oracle.is_valid(value), text


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 1},
        {"type": "integer"},
        {"pattern": "a"},
        {"properties": {"a": {"const": 1}}},
        {"properties": {"a": {}}, "additionalProperties": False},
        {"anyOf": [{"const": 1}]},
    ],
)
def test_what_cannot_be_said_is_left(schema: dict[str, Any]) -> None:
    assert negated(schema) is None
    assert expressed({"not": schema}) == {"not": schema}


def test_nothing_is_no_opposite() -> None:
    """A schema that nothing fits is refused by the name that it has in the request."""
    for everything in ({}, True, {"minLength": 0}):
        assert negated(everything) is False
        assert expressed({"not": everything}) == {"not": everything}
