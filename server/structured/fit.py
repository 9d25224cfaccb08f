"""Whether a plain value, no array and no object, fits a schema, as far as that is certain."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from server.structured.negation import REMARKS
from server.structured.references import target
from server.structured.subschemas import Node
from server.structured.unequal import type_of

_OF_OTHERS = frozenset(
    (
        *("properties", "patternProperties", "additionalProperties", "required", "propertyNames"),
        *("minProperties", "maxProperties", "dependencies", "dependentRequired"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        *("contains", "definitions", "$defs", *REMARKS),
    )
)
"""Keywords that say nothing of a plain value."""
_OTHER_SYNTAX = re.compile(r"\\[^dDwWsSbB.\-/()\[\]{}+*?|^$\\]|\[\[|&&|--|~~|\(\?")
"""What Python may read otherwise than llguidance in an expression."""
_MAX_DEPTH = 16


def fits(value: Any, schema: Any, root: Node, depth: int = _MAX_DEPTH) -> bool | None:
    """Whether the value fits; None where that is not certain.

    Args:
        root: what references point into.
    """
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict) or not depth:
        return None
    return _all(_fits_keyword(value, key, of, root, depth - 1) for key, of in schema.items())


def _fits_keyword(value: Any, key: str, of: Any, root: Node, depth: int) -> bool | None:
    if key in _OF_OTHERS:
        return True
    match key:
        case "type":
            return _is_of(value, of if isinstance(of, list) else [of])
        case "const":
            return _equal(value, of)
        case "enum" if isinstance(of, list):
            return any(_equal(value, each) for each in of)
        case "$ref" if isinstance(of, str):
            return fits(value, target(root, of), root, depth)
        case "not":
            return _opposite(fits(value, of, root, depth))
        case "allOf" if isinstance(of, list):
            return _all(fits(value, each, root, depth) for each in of)
        case "anyOf" if isinstance(of, list):
            return _opposite(_all(_opposite(fits(value, each, root, depth)) for each in of))
        case "pattern" if isinstance(of, str):
            return _matches(value, of) if isinstance(value, str) else True
        case "minLength" | "maxLength" if isinstance(of, int):
            if not isinstance(value, str):
                return True
            return len(value) >= of if key == "minLength" else len(value) <= of
        case "minimum" | "maximum" if isinstance(of, int | float):
            if type_of(value) != "number":
                return True
            return None if value == of else (value > of) == (key == "minimum")
    return None


def _all(found: Iterable[bool | None]) -> bool | None:
    known = list(found)
    return False if False in known else None if None in known else True


def _opposite(found: bool | None) -> bool | None:
    return None if found is None else not found


def _is_of(value: Any, names: list[Any]) -> bool:
    kind = type_of(value)
    return kind in names or (kind == "number" and "integer" in names and float(value).is_integer())


def _equal(one: Any, other: Any) -> bool:
    return type_of(one) == type_of(other) and bool(one == other)


def _matches(value: str, pattern: str) -> bool | None:
    if not value.isascii() or not value.isprintable() or _OTHER_SYNTAX.search(pattern):
        return None
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return None
