"""The opposite of a schema, in keywords that llguidance keeps to, where these can say it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from server.structured.references import target
from server.structured.subschemas import Node
from server.structured.unequal import TYPES, unequal

REMARKS = frozenset(
    ("title", "description", "examples", "default", "$comment", "$schema", "$id", "id")
)
"""Keywords that no value is unfit for."""
MAX_DEPTH = 8
"""References are followed so often, one within another: a schema may hold itself."""
MAX_SCHEMAS = 1000
"""The opposite of one that holds more is not looked for."""
_OF_OTHERS = ("items", "additionalItems", "additionalProperties", "propertyNames")
_BOUNDS = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
"""By keyword: the type it speaks of, the keyword that says the opposite, and what to add to it."""


class Negation:
    """Says what does not fit a schema.

    Args:
        root: what references point into.
        is_exact: an opposite is of all values that do not fit. Otherwise some of these may be
            left out: what is unfit for a keyword alone whose opposite cannot be said.
    """

    def __init__(self, root: Node, *, is_exact: bool) -> None:
        self._root = root
        self._is_exact = is_exact
        self._depth, self._num_left = 0, MAX_SCHEMAS
        self._opposites: dict[str, Callable[[Any], Any]] = {
            "not": lambda value: value,
            "type": self._not_type,
            "const": lambda value: unequal([value]),
            "enum": lambda value: unequal(value) if isinstance(value, list) else None,
            "required": _not_required,
            "properties": self._not_properties,
            "anyOf": self._none_of,
            "allOf": self._not_all_of,
            "oneOf": self._not_one_of,
            "$ref": self._not_referred,
        }

    def of(self, schema: Any) -> Any:
        """The schema of values that one does not fit; None where that cannot be said."""
        if isinstance(schema, bool):
            return not schema
        self._num_left -= 1
        if not isinstance(schema, dict) or self._num_left < 0:
            return None
        said = {
            key: value
            for key, value in schema.items()
            if key not in REMARKS and key not in ("definitions", "$defs")
        }
        if "$ref" in said and len(said) > 1:  # what is beside a reference may have no effect
            if self._is_exact:
                return None
            said = {"$ref": said["$ref"]}
        return self._any_of([self._opposite(key, value) for key, value in said.items()])

    def _any_of(self, opposites: list[Any]) -> Any:
        """Whatever fits one of the opposites, of which some may not be said."""
        if None in opposites:
            opposites = [opposite for opposite in opposites if opposite is not None]
            if self._is_exact or not opposites:
                return None
        return _any(opposites)

    def _opposite(self, key: str, value: Any) -> Any:
        """What does not fit one keyword; None where that cannot be said."""
        if key in _BOUNDS and isinstance(value, int | float) and not isinstance(value, bool):
            kind, opposite, step = _BOUNDS[key]
            return False if value + step < 0 and step else {"type": kind, opposite: value + step}
        if key in _OF_OTHERS and (value is True or value == {}):
            return False
        write = self._opposites.get(key)
        return None if write is None else write(value)

    def _not_type(self, value: Any) -> Any:
        named = value if isinstance(value, list) else [value]
        if any(name not in (*TYPES, "integer") for name in named):
            return None
        if "integer" in named and "number" not in named:
            if self._is_exact:
                return None  # numbers that are no integers have no name
            named = [*named, "number"]
        others = [name for name in TYPES if name not in named]
        return {"type": others} if others else False

    def _not_properties(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        return self._any_of(
            [
                {"type": "object", "properties": {key: opposite}, "required": [key]}
                if opposite not in (None, False)
                else opposite
                for key, opposite in ((key, self.of(schema)) for key, schema in value.items())
            ]
        )

    def _none_of(self, value: Any) -> Any:
        opposites = [self.of(schema) for schema in value] if isinstance(value, list) else [None]
        return None if None in opposites else {"allOf": opposites}

    def _not_all_of(self, value: Any) -> Any:
        if not isinstance(value, list):
            return None
        return self._any_of([self.of(schema) for schema in value])

    def _not_one_of(self, value: Any) -> Any:
        """None of them, or two."""
        none = self._none_of(value)
        if none is None:
            return None
        pairs = [{"allOf": list(pair)} for pair in itertools.combinations(value, 2)]
        return _any([none, *pairs])

    def _not_referred(self, value: Any) -> Any:
        found = target(self._root, value) if isinstance(value, str) else None
        if found is None or self._depth >= MAX_DEPTH:
            return None
        self._depth += 1
        opposite = self.of(found)
        self._depth -= 1
        return opposite


def _any(schemas: list[Any]) -> Any:
    """Whatever fits one of the schemas."""
    if True in schemas:
        return True
    left = [schema for schema in schemas if schema is not False]
    if not left:
        return False
    return left[0] if len(left) == 1 else {"anyOf": left}


def _not_required(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        return None
    return _any([{"type": "object", "properties": {key: False}} for key in value])
