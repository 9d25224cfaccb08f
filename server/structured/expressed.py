"""Keywords that llguidance has not, in others that it keeps to, where these can say the same.

What is not expressible stays as it is, and is refused.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from server.structured.negation import Negation
from server.structured.references import target
from server.structured.subschemas import Node, all_schemas, found_at, replaced
from server.structured.unequal import TYPES, in_pattern

MAX_BRANCHES = 70
"""Of one keyword: with more it stays as it is."""
_WORDS = frozenset(("title", "description", "examples", "default", "$comment"))
"""Keywords that say nothing of a value."""

Rewritten = tuple[set[str], list[Any]]
"""Keywords to take away from a schema, and the schemas to hold instead."""


def expressed(schema: Node) -> Node:
    """The schema with what can be said otherwise said so, inner schemas first."""
    for path, _ in sorted(all_schemas(schema), key=lambda place: -len(place[0])):
        node = found_at(schema, path)
        if path[-2:-1] == ("properties",) and _fits_nothing(node, schema):
            schema = replaced(schema, path, False)
            continue
        said = _without_siblings(dict(node), schema) if path else dict(node)
        for rule in _RULES if isinstance(said.get("allOf", []), list) else ():
            found = rule(said, Negation(schema, is_exact=True))
            if found is not None:
                keywords, more = found
                said = {key: value for key, value in said.items() if key not in keywords}
                if more:
                    said["allOf"] = [*said.get("allOf", ()), *more]
        if said != node:
            schema = replaced(schema, path, said)
    return schema


def _fits_nothing(node: Node, root: Node) -> bool:
    return "not" in node and Negation(root, is_exact=True).of(node["not"]) is False


def _without_siblings(node: Node, root: Node) -> Node:
    """Without what is beside a reference and is said by the schema that it names."""
    reference = node.get("$ref")
    found = target(root, reference) if isinstance(reference, str) else None
    if not isinstance(found, dict) or found is root:
        return node
    return {
        key: value
        for key, value in node.items()
        if key == "$ref" or not (key in _WORDS or (key in found and found[key] == value))
    }


def _not(node: Node, negation: Negation) -> Rewritten | None:
    opposite = negation.of(node["not"]) if "not" in node else None
    # What nothing fits is refused by the name that it has in the request.
    return None if opposite is None or opposite is False else ({"not"}, [opposite])


def _dependencies(node: Node, _: Negation) -> Rewritten | None:
    """An object without the property, or with what it needs, is right."""
    found = {
        keyword
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas")
        if isinstance(node.get(keyword), dict)
    }
    needs = [needed for keyword in found for needed in node[keyword].values()]
    if not found or not all(isinstance(needed, list | dict | bool) for needed in needs):
        return None
    return found, [
        {
            "anyOf": [
                {"properties": {key: False}},
                {"required": needed} if isinstance(needed, list) else needed,
            ]
        }
        for keyword in sorted(found)
        for key, needed in node[keyword].items()
    ]


def _if(node: Node, negation: Negation) -> Rewritten | None:
    """`if` is false or `then` holds, and it is true or `else` holds."""
    if "if" not in node:
        return None
    condition, more = node["if"], []
    if "then" in node:
        opposite = negation.of(condition)
        if opposite is None:
            return None
        more.append(node["then"] if opposite is False else {"anyOf": [opposite, node["then"]]})
    if "else" in node:
        more.append({"anyOf": [condition, node["else"]]})
    return {"if", "then", "else"}, more


def _property_names(node: Node, _: Negation) -> Rewritten | None:
    """Names of a pattern are properties of that pattern, beside no others."""
    names = node.get("propertyNames")
    if not isinstance(names, dict):
        return None
    patterns: list[str] = []
    least, most = names.get("minLength", 0), names.get("maxLength", "")
    for key, value in names.items():
        if words := _values({key: value}):
            patterns.append(f"^(?:{'|'.join(in_pattern(str(word)) for word in words)})$")
        elif key in ("minLength", "maxLength"):
            patterns.append(rf"^[\s\S]{{{least},{most}}}$")
        elif key == "pattern":
            patterns.append(str(value))
        elif key not in _WORDS and (key, value) != ("type", "string"):
            return None
    return {"propertyNames"}, [
        {"patternProperties": {pattern: {}}, "additionalProperties": False}
        for pattern in dict.fromkeys(patterns)
    ]


def _unique_items(node: Node, _: Negation) -> Rewritten | None:
    """Arrays of few different values are named each."""
    if "uniqueItems" not in node:
        return None
    if node["uniqueItems"] is False or node.get("maxItems") in (0, 1):
        return {"uniqueItems"}, []
    values = _values(node.get("items"))
    lengths = range(len(values) + 1)
    count = sum(math.perm(len(values), length) for length in lengths)
    are_different = all(one != other for one, other in itertools.combinations(values, 2))
    if not values or count > MAX_BRANCHES or not are_different:
        return None
    arrays = [
        {"prefixItems": [{"const": value} for value in order], "minItems": n, "maxItems": n}
        for n in lengths
        for order in itertools.permutations(values, n)
    ]
    return {"uniqueItems"}, [_of_type("array", arrays)]


def _values(schema: Any) -> list[Any]:
    """The values that a schema names; none if it does not."""
    if not isinstance(schema, dict):
        return []
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else []


def _num_properties(node: Node, _: Negation) -> Rewritten | None:
    """A number of properties is that of the required ones and some of the others."""
    bounds = {key: node[key] for key in ("minProperties", "maxProperties") if key in node}
    own, required = node.get("properties"), node.get("required", [])
    if not bounds or not isinstance(own, dict) or not isinstance(required, list):
        return None
    if not all(type(bound) is int for bound in bounds.values()):
        return None
    others = [key for key, value in own.items() if key not in required and value is not False]
    is_closed = node.get("additionalProperties") is False and "patternProperties" not in node
    least = bounds.get("minProperties", 0) - len(required)
    branches: list[Any]
    if is_closed and "maxProperties" not in bounds and least > 0:
        branches = [{"required": list(keys)} for keys in itertools.combinations(others, least)]
    elif least == 1 and "maxProperties" not in bounds:
        branches = [{"required": [key]} for key in others]
        branches.append({"properties": dict.fromkeys(others, False), **bounds})
    elif 2 ** len(others) > MAX_BRANCHES:
        return None
    else:
        branches = [
            {
                "required": list(keys),
                "properties": {key: False for key in others if key not in keys},
                **bounds,
            }
            for length in range(len(others) + 1)
            for keys in itertools.combinations(others, length)
        ]
    if len(branches) > MAX_BRANCHES:
        return None
    return set(bounds), [_of_type("object", branches)]


def _of_type(name: str, branches: list[Any]) -> Any:
    """Whatever is not of a type, or fits one of the branches."""
    return {"anyOf": [{"type": [other for other in TYPES if other != name]}, *branches]}


_RULES = (_not, _dependencies, _if, _property_names, _unique_items, _num_properties)
