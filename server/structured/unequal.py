"""Schemas of the values that equal none of some given ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

TYPES = ("null", "boolean", "number", "string", "array", "object")
MAX_NUMBERS = 64
"""With more numbers to leave out there are more ranges than are worth a branch each."""
_ANYTHING = r"[\s\S]"
_END = ""
"""The key of a trie's node where a string may end."""


def unequal(values: Sequence[Any]) -> Any:
    """A schema of all JSON values but the given ones; None where that cannot be said."""
    by_type: dict[str, list[Any]] = {}
    for value in values:
        by_type.setdefault(type_of(value), []).append(value)
    branches: list[Any] = []
    if others := [name for name in TYPES if name not in by_type]:
        branches.append({"type": others})
    for name, own in by_type.items():
        found = _unequal_of(name, own)
        if found is None:
            return None
        branches += found
    return branches[0] if len(branches) == 1 else {"anyOf": branches} if branches else False


def type_of(value: Any) -> str:
    """The name of a value's type; integers are numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _unequal_of(name: str, values: list[Any]) -> list[Any] | None:
    """Schemas of a type's other values, of which one must fit; None where that cannot be said."""
    match name:
        case "null":
            return []
        case "boolean":
            return [{"const": value} for value in (True, False) if value not in values]
        case "number":
            return _other_numbers(values)
        case "string":
            return [{"type": "string", "pattern": other_strings(values)}]
        case "array":
            others = [_other_arrays(value) for value in values]
            return None if None in others else [{"allOf": others}]
    return [{"type": "object", "minProperties": 1}] if not any(values) else None


def _other_numbers(values: list[Any]) -> list[Any] | None:
    ordered = sorted(set(values))
    if len(ordered) > MAX_NUMBERS or not all(map(math.isfinite, ordered)):
        return None
    least, most = {"exclusiveMaximum": ordered[0]}, {"exclusiveMinimum": ordered[-1]}
    between = [
        {"exclusiveMinimum": low, "exclusiveMaximum": high}
        for low, high in itertools.pairwise(ordered)
    ]
    return [{"type": "number", **bounds} for bounds in (least, *between, most)]


def _other_arrays(value: list[Any]) -> Any:
    """Arrays of another length, or with another item at some place; None as for `unequal`."""
    length = len(value)
    branches: list[Any] = [{"minItems": length + 1}]
    if length:
        branches.append({"maxItems": length - 1})
    for i, item in enumerate(value):
        other = unequal([item])
        if other is None:
            return None
        branches.append({"prefixItems": [*({} for _ in range(i)), other], "minItems": i + 1})
    return {"type": "array", "anyOf": branches}


def other_strings(values: Sequence[str]) -> str:
    """A pattern, which stands for the whole string, of all strings but some."""
    trie: dict[str, Any] = {}
    for value in values:
        node = trie
        for character in value:
            node = node.setdefault(character, {})
        node[_END] = {}
    return f"^(?:{_other_ends(trie)})$"


def _other_ends(node: dict[str, Any]) -> str:
    """What may follow a trie's node so that no string of it comes of it."""
    characters = [key for key in node if key != _END]
    if not characters:
        return f"{_ANYTHING}+"
    listed = "".join(map(in_pattern, characters))
    branches = [f"[^{listed}]{_ANYTHING}*"]
    branches += [f"{in_pattern(key)}(?:{_other_ends(node[key])})" for key in characters]
    if _END not in node:
        branches.append("")
    return "|".join(branches)


def in_pattern(text: str) -> str:
    """A text as patterns have it, inside of classes of characters and outside."""
    return "".join(
        each if each.isascii() and each.isalnum() else f"\\x{{{ord(each):x}}}" for each in text
    )
