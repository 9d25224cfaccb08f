"""Arguments as text and as Python, made into JSON by the types of a schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.conversation.parsing.values import argument_types, python_to_json, text_to_json


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("5", {"string"}, '"5"'),
        ("5", {"integer"}, "5"),
        (" 5 ", {"integer"}, "5"),
        ("5", {"number"}, "5"),
        ("5.0", {"integer"}, "5.0"),
        ("5.5", {"integer"}, '"5.5"'),
        ("12345678901234567890123", {"integer"}, "12345678901234567890123"),
        ("true", {"boolean"}, "true"),
        ("True", {"boolean"}, "true"),
        ("None", {"string", "null"}, "null"),
        ("null", {"string"}, '"null"'),
        ('{"a": [1]}', {"object"}, '{"a": [1]}'),
        ("{'a': True}", {"object"}, '{"a": true}'),
        ("[1, 2", {"array"}, '"[1, 2"'),
        ("words", {"integer"}, '"words"'),
        ("5", None, "5"),
        ('"5"', None, '"\\"5\\""'),
        ("1, 2", None, '"1, 2"'),
        ("NaN", {"number"}, '"NaN"'),
        ("", None, '""'),
        ("ü🙂\n", None, '"ü🙂\\n"'),
    ],
)
def test_text(text: str, types: set[str] | None, expected: str) -> None:
    found = text_to_json(text, None if types is None else frozenset(types))
    assert found == expected
    json.loads(found)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("'it\\'s'", '"it\'s"'),
        ("[1, (2, 3), {'a': None}]", '[1, [2, 3], {"a": null}]'),
        ("true", "true"),
        ("-1.5", "-1.5"),
        ("f(1)", None),
        ("x", None),
        ("{'b', 'a'}", '["b", "a"]'),
        ("'a\nb\x00c'", '"a\\nb\\u0000c"'),
        ("['a\nb\\\nc', 07, 1.007]", '["a\\nbc", 7, 1.007]'),
        ("['''it's 007''', 007]", '["it\'s 007", 7]'),
        ("b'x'", None),
        ("1e999", None),
        ("'\\ud800'", None),
        ("(" * 1000, None),
        ("__import__('os')", None),
    ],
)
def test_python(source: str, expected: str | None) -> None:
    assert python_to_json(source) == expected


def test_types_of_schemas() -> None:
    properties: dict[str, Any] = {
        "one": {"type": "integer"},
        "several": {"type": ["string", "null"]},
        "python": {"type": "float"},
        "any": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "enum": {"enum": ["a", 3]},
        "const": {"const": 1.5},
        "ref": {"$ref": "#/$defs/Point"},
        "escaped": {"$ref": "#/$defs/a~1b~01"},
        "circle": {"$ref": "#/$defs/Loop"},
        "silent": {"description": "x"},
        "free": True,
    }
    defs = {
        "Point": {"type": "object"},
        "Loop": {"$ref": "#/$defs/Loop"},
        "a/b~1": {"type": "integer"},  # RFC 6901: "~1" is unescaped before "~0"
        "a/b/": {"type": "boolean"},
    }
    assert argument_types({"properties": properties, "$defs": defs}) == {
        "one": {"integer"},
        "several": {"string", "null"},
        "python": {"number"},
        "any": {"boolean", "null"},
        "enum": {"string", "integer"},
        "const": {"number"},
        "ref": {"object"},
        "escaped": {"integer"},
    }
    assert argument_types(None) == {}
