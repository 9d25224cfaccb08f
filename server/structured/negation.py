"""`not`, `dependencies` and their like in keywords that llguidance keeps to, where these can.

What is not expressible stays as it is, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from server.structured.json_schema import Node, all_schemas, replaced

_TYPES = ("null", "boolean", "number", "string", "array", "object")
_REMARKS = ("title", "description", "examples", "default", "$comment", "$schema", "$id", "id")
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


def expressed(schema: Node) -> Node:
    """The schema with what can be said otherwise said so."""
    for path, node in sorted(all_schemas(schema), key=lambda place: -len(place[0])):
        said, more = dict(node), []
        opposite = negated(node["not"]) if "not" in node else None
        if opposite is not None and opposite is not False:
            del said["not"]
            more.append(opposite)
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            if isinstance(node.get(keyword), dict):
                del said[keyword]
                more += [_dependent(key, value) for key, value in node[keyword].items()]
        if more:
            said["allOf"] = [*said.get("allOf", ()), *more]
            schema = replaced(schema, path, said)
    return schema


def _dependent(key: str, needed: Any) -> Node:
    """That an object without the property, or with what it needs, is right."""
    then = {"required": needed} if isinstance(needed, list) else needed
    return {"anyOf": [{"properties": {key: False}}, then]}


def negated(schema: Any) -> Any:
    """The schema of all values that one does not fit; None where that cannot be said."""
    if isinstance(schema, bool):
        return not schema
    if not isinstance(schema, dict):
        return None
    said = {key: value for key, value in schema.items() if key not in _REMARKS}
    if "properties" in said and {"additionalProperties", "patternProperties"} & set(said):
        return None
    opposites = [_opposite(key, value) for key, value in said.items()]
    if any(opposite is None for opposite in opposites):
        return None
    return _any(opposites)


def _any(schemas: list[Any]) -> Any:
    """Whatever fits one of the schemas."""
    if True in schemas:
        return True
    left = [schema for schema in schemas if schema is not False]
    if not left:
        return False
    return left[0] if len(left) == 1 else {"anyOf": left}


def _opposite(key: str, value: Any) -> Any:
    """What does not fit one keyword; None where that cannot be said."""
    if key in _BOUNDS and isinstance(value, int | float) and not isinstance(value, bool):
        kind, opposite, step = _BOUNDS[key]
        return False if value + step < 0 and step else {"type": kind, opposite: value + step}
    write = _OPPOSITES.get(key)
    return None if write is None else write(value)


def _not_type(value: Any) -> Any:
    named = value if isinstance(value, list) else [value]
    if not set(named) <= set(_TYPES):
        return None  # numbers that are no integers have no name
    others = [name for name in _TYPES if name not in named]
    return {"type": others} if others else False


def _not_required(value: Any) -> Any:
    if not isinstance(value, list):
        return None
    return _any([{"type": "object", "properties": {key: False}} for key in value])


def _not_properties(value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    opposites = {key: negated(schema) for key, schema in value.items()}
    if None in opposites.values():
        return None
    return _any(
        [
            {"type": "object", "properties": {key: opposite}, "required": [key]}
            for key, opposite in opposites.items()
            if opposite is not False
        ]
    )


def _none_of(value: Any) -> Any:
    opposites = [negated(schema) for schema in value] if isinstance(value, list) else [None]
    return None if None in opposites else {"allOf": opposites}


def _not_all_of(value: Any) -> Any:
    opposites = [negated(schema) for schema in value] if isinstance(value, list) else [None]
    return None if None in opposites else _any(opposites)


_OPPOSITES: dict[str, Callable[[Any], Any]] = {
    "not": lambda value: value,
    "type": _not_type,
    "required": _not_required,
    "properties": _not_properties,
    "anyOf": _none_of,
    "allOf": _not_all_of,
}
