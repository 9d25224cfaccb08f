"""Opposites of schemas: exact ones are of all other values, others of some of these alone."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from server.structured.negation import MAX_SCHEMAS, Negation
from tests.server.structured.values import VALUES

PARTLY: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": "string", "pattern": "x"},
    {"properties": {"a": {"const": 1}}, "required": ["b"], "additionalProperties": False},
    {"properties": {"a": {"pattern": "x", "type": "string"}}},
    {"allOf": [{"pattern": "x"}, {"required": ["a"]}]},
    {"type": "array", "contains": {"const": 1}},
    {"$ref": "#/$defs/null", "type": ["null", "string"]},
]
ROOT = {
    "$defs": {"null": {"type": "null"}, "self": {"properties": {"a": {"$ref": "#/$defs/self"}}}}
}


@pytest.mark.parametrize("schema", PARTLY, ids=json.dumps)
def test_an_opposite_in_part_holds_nothing_that_fits(schema: dict[str, Any]) -> None:
    assert Negation(ROOT, is_exact=True).of(schema) is None
    opposite = Negation(ROOT, is_exact=False).of(schema)
    oracle = jsonschema.Draft202012Validator({**ROOT, **schema})
    said = jsonschema.Draft202012Validator({**ROOT, **opposite})
    unfit = [value for value in VALUES if said.is_valid(value)]
    assert unfit
    assert not any(map(oracle.is_valid, unfit))


@pytest.mark.parametrize("is_exact", [True, False])
def test_what_has_no_opposite(is_exact: bool) -> None:
    for schema in (None, "a", {"pattern": "x"}, {"$ref": "#/$defs/self"}, {"type": "any"}):
        assert Negation(ROOT, is_exact=is_exact).of(schema) is None
    for everything in (True, {}, {"title": "t"}, {"minLength": 0}, {"items": True}):
        assert Negation(ROOT, is_exact=is_exact).of(everything) is False


def test_the_work_is_bounded() -> None:
    """References that double at each level end as what cannot be said."""
    defs: dict[str, Any] = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}] * 4}
        for i in range(7)
    }
    defs["d7"] = {"type": "null"}
    negation = Negation({"$defs": defs}, is_exact=True)
    assert negation.of({"$ref": "#/$defs/d0"}) is None
    assert MAX_SCHEMAS < 8**7
