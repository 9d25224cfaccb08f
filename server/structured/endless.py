"""Schemas that refer to themselves without end: each value they describe holds another of its kind.

llguidance takes them, and a reply would go on until its limit of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from server.structured.references import target
from server.structured.subschemas import Node, Path, all_schemas

_REF = "$ref"


def endless_reference(schema: Node) -> Path | None:
    """Where a reference is that no finite value follows; None where the schema has some.

    A reference has a finite value once the schema it names has one, by way of those that are known
    to; whatever waits for it is looked at again. References that leave the schema, and those by an
    anchor, count as finite: llguidance decides on them.
    """
    pointers = {node[_REF] for _, node in all_schemas(schema) if isinstance(node.get(_REF), str)}
    targets = {pointer: target(schema, pointer) for pointer in pointers}
    open_refs = {pointer for pointer, found in targets.items() if isinstance(found, dict)}
    waiting: dict[str, list[str]] = {}
    todo = sorted(open_refs)
    while todo:
        if (ref := todo.pop()) not in open_refs:
            continue
        waits_for: list[str] = []
        if _endless(targets[ref], open_refs, waits_for) is None:
            open_refs.remove(ref)
            todo += waiting.pop(ref, ())
        for other in waits_for:
            waiting.setdefault(other, []).append(ref)
    return _endless(schema, open_refs, [])


def _endless(node: Any, open_refs: set[str], waits_for: list[str]) -> Path | None:
    """Where in a schema a reference is that is open, and that all of its values go through.

    Args:
        waits_for: gets the references of which one must have a finite value first.
    """
    if not isinstance(node, dict):
        return None
    if isinstance(ref := node.get(_REF), str) and ref in open_refs:
        waits_for.append(ref)
        return (_REF,)
    for path, inner in _needed(node):
        if (found := _endless(inner, open_refs, waits_for)) is not None:
            return (*path, *found)
    for key in ("anyOf", "oneOf"):
        found_in: list[Path] = []
        waits_for_one: list[str] = []
        choices = list(_listed(node, key))
        for path, inner in choices:
            if (found := _endless(inner, open_refs, waits_for_one)) is not None:
                found_in.append((*path, *found))
        if choices and len(found_in) == len(choices):
            waits_for += waits_for_one
            return found_in[0]
    return None


def _needed(node: Node) -> Iterator[tuple[Path, Any]]:
    """The schemas of values that every value of this schema holds, or has to match too."""
    yield from _listed(node, "allOf")
    kind = node.get("type")
    if kind in ("object", ["object"]) and isinstance(properties := node.get("properties"), dict):
        for name in _names(node.get("required")):
            if name in properties:
                yield ("properties", name), properties[name]
    least = node.get("minItems")
    if kind in ("array", ["array"]) and isinstance(least, int):
        first = list(_listed(node, "prefixItems"))
        yield from first[:least]
        if least > len(first):
            yield ("items",), node.get("items")


def _listed(node: Node, key: str) -> Iterator[tuple[Path, Any]]:
    inner = node.get(key)
    for i, value in enumerate(inner if isinstance(inner, list) else ()):
        yield (key, i), value


def _names(required: Any) -> Iterable[str]:
    if not isinstance(required, list):
        return ()
    return [name for name in required if isinstance(name, str)]
