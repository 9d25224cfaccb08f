"""Schemas of which no value is finite are refused, and none that has one."""

from __future__ import annotations

from typing import Any

import pytest

from server.errors import ApiError
from server.structured.endless import endless_reference
from tests.server.structured.checks import checked, matches

SELF = {"$ref": "#"}


def holds(inner: Any, **more: Any) -> dict[str, Any]:
    """An object that must hold another value."""
    return {"type": "object", "properties": {"a": inner}, "required": ["a"], **more}


def array(inner: Any, least: int, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": inner, "minItems": least, **more}


ENDLESS: list[tuple[dict[str, Any], str]] = [
    (SELF, "$ref"),
    (holds(SELF), "properties.a.$ref"),
    (array(SELF, 1), "items.$ref"),
    (array(True, 1, prefixItems=[SELF]), "prefixItems[0].$ref"),
    (holds({"anyOf": [SELF, array(SELF, 2)]}), "properties.a.anyOf[0].$ref"),
    ({"allOf": [{"type": "object"}, holds(SELF)]}, "allOf[1].properties.a.$ref"),
    (
        {
            "$defs": {"x~/y": holds({"$ref": "#/$defs/b"}), "b": holds({"$ref": "#/$defs/x~0~1y"})},
            **holds({"$ref": "#/$defs/b"}),
        },
        "properties.a.$ref",
    ),
]
FINITE: list[tuple[dict[str, Any], str]] = [
    (holds(SELF, required=[]), '{"a":{}}'),
    (holds({"anyOf": [SELF, {"type": "null"}]}), '{"a":{"a":null}}'),
    (array(SELF, 0), "[[],[[]]]"),
    (holds(SELF, type=["object", "null"]), '{"a":null}'),
    (
        {
            "$defs": {"leaf": {"type": "integer"}, "b": holds({"$ref": "#/$defs/leaf"})},
            **holds({"$ref": "#/$defs/b"}),
        },
        '{"a":{"a":1}}',
    ),
    ({"$defs": {"never": holds({"$ref": "#/$defs/never"})}, "type": "integer"}, "7"),
]


@pytest.mark.parametrize(("schema", "place"), ENDLESS)
def test_an_endless_schema_is_refused_by_its_reference(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(ApiError) as caught:
        checked("json", schema)
    assert (caught.value.status, caught.value.code) == (400, "grammar_refused")
    assert caught.value.param == f"here.{place}"
    assert "recurs without end" in caught.value.message


@pytest.mark.parametrize(("schema", "text"), FINITE)
def test_a_schema_with_a_finite_value_is_taken(schema: dict[str, Any], text: str) -> None:
    assert matches(checked("json", schema), text)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/nowhere"},
        {"$ref": "#anchor"},
        {"$ref": "https://example.com/schema"},
        {"$ref": 1},
        {"type": "object", "properties": [], "required": "a"},
        {"type": "array", "minItems": "1", "items": SELF},
    ],
)
def test_what_is_no_such_reference_is_left_to_others(schema: dict[str, Any]) -> None:
    assert endless_reference(schema) is None
