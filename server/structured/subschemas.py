"""JSON schemas: where schemas are within a schema, and the options that llguidance reads one with.

What it refuses of them is found by `refusals`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from server.errors import bad_request
from server.schema.base import field_path, is_deeper

Path = tuple[str | int, ...]
"""Where in a schema something is: keys of objects and indices of lists."""
Node = dict[str, Any]
"""A schema that is an object."""

MAX_DEPTH = 100
"""llguidance reads JSON up to 128 levels, its own wrapping among them."""

_OPTIONS = "x-guidance"
_DEFINITIONS = ("$defs", "definitions")
_MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = (
    *("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not"),
    *("if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
)


def with_options(schema: Node | bool, whitespace: str, param: str) -> Node:
    """The schema as llguidance is given it: with options of ours, whatever it says of its own.

    Args:
        whitespace: a regular expression for what may be between JSON's tokens; empty for
            nothing.
        param: what errors call the schema.

    Raises:
        ApiError: it allows nothing, or is nested too deep.
    """
    if schema is False:
        raise bad_request(param, f"{param} is false, which no text matches")
    if is_deeper(schema, MAX_DEPTH):
        raise bad_request(param, f"{param} must be nested at most {MAX_DEPTH} levels deep")
    own = {} if schema is True else schema
    options: Node = {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": bool(whitespace),
        "coerce_one_of": False,
        "lenient": False,
    }
    if whitespace:
        options["whitespace_pattern"] = whitespace
    return {**own, _OPTIONS: options}


def definitions(schema: Node) -> Node:
    """What a schema's references may point to."""
    return {key: schema[key] for key in _DEFINITIONS if key in schema}


def inner_schemas(schema: Node) -> Iterator[tuple[Path, Node]]:
    """The schemas directly within one, definitions first: what refers to them is not to blame."""
    for key in (*_DEFINITIONS, *_MAPS):
        if isinstance(members := schema.get(key), dict):
            for name, value in members.items():
                if isinstance(value, dict):
                    yield (key, name), value
    for key in _LISTS:
        if isinstance(members := schema.get(key), list):
            for i, value in enumerate(members):
                if isinstance(value, dict):
                    yield (key, i), value
    for key in _SINGLE:
        if isinstance(value := schema.get(key), dict):
            yield (key,), value


def all_schemas(schema: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """A schema and all within it."""
    yield path, schema
    for inner_path, inner in inner_schemas(schema):
        yield from all_schemas(inner, (*path, *inner_path))


def found_at(schema: Any, path: Path) -> Any:
    """What is at `path`."""
    for key in path:
        schema = schema[key]
    return schema


def replaced(schema: Any, path: Path, node: Any) -> Any:
    """A copy of the schema with another one at `path`."""
    if not path:
        return node
    copied: Any = copy.copy(schema)  # a list on the way to some
    copied[path[0]] = replaced(schema[path[0]], path[1:], node)
    return copied


def path_in(param: str, path: Path) -> str:
    """Write where in a body something of a schema is."""
    return field_path((param, *path))
