"""What is certain of a plain value is what an independent validator says."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from server.structured.fit import fits
from tests.server.structured.values import VALUES

PLAIN = [value for value in VALUES if not isinstance(value, list | dict)]
ROOT = {"$defs": {"word": {"type": "string", "pattern": "^x"}}}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {"type": "integer", "minimum": 0.5},
        {"type": ["string", "null"], "title": "t", "required": ["a"]},
        {"enum": [1, True, "x"]},
        {"const": False},
        {"minLength": 1, "maxLength": 2},
        {"maximum": 1.25},
        {"$ref": "#/$defs/word"},
        {"not": {"$ref": "#/$defs/word"}},
        {"anyOf": [{"type": "null"}, {"allOf": [{"type": "number"}, {"minimum": -0.5}]}]},
    ],
)
def test_it_is_as_a_validator_says(schema: Any) -> None:
    whole = {**ROOT, **schema} if isinstance(schema, dict) else schema
    oracle = jsonschema.Draft202012Validator(whole)
    for value in PLAIN:
        found = fits(value, schema, ROOT)
        is_sure = value not in ("x\n", "\u20ac") or "pattern" not in str(whole)
        assert found == oracle.is_valid(value) if found is not None else not is_sure, value


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("x", {"format": "date"}),
        ("x", {"pattern": r"\p{L}"}),
        ("x", {"pattern": "[[:alpha:]]"}),
        ("x", {"pattern": "("}),
        ("\u20ac", {"pattern": r"\w"}),
        (1, {"minimum": 1}),
        ("x", {"$ref": "#/$defs/none"}),
        ("x", {"anyOf": [{"format": "date"}, {"type": "null"}]}),
    ],
)
def test_what_is_not_certain(value: Any, schema: dict[str, Any]) -> None:
    assert fits(value, schema, ROOT) is None
