"""`oneOf` as `anyOf` of members that exclude one another.

llguidance takes a `oneOf` only where it sees that no value fits two members. Here more is seen:
types and constants after references, properties that one member needs and another has otherwise.
Objects that may fit two members are kept apart by properties: each member goes without one that
the other requires. That leaves out values of which a member is unfit for another reason, but lets
nothing through that fits two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from server.structured.fit import fits
from server.structured.negation import Negation
from server.structured.references import target
from server.structured.subschemas import Node, Path, all_schemas, found_at, replaced

MAX_BRANCHES = 64
"""Of one `oneOf`: with more ways to leave properties out it stays as it is."""
MAX_CHARS = 1000
"""Of what keeps one member from another: it is repeated for each pair."""
_MAX_DEPTH = 6
_TYPES = {
    "null": {"null"},
    "boolean": {"boolean"},
    "integer": {"integer"},
    "number": {"integer", "fraction"},
    "string": {"string"},
    "array": {"array"},
    "object": {"object"},
}
_ALL = frozenset().union(*_TYPES.values())
_OF_OBJECTS = {"required", "properties", "title", "description", "examples", "default", "$comment"}
"""Keywords that say nothing of a value that is no object."""


class _Object(NamedTuple):
    """What a schema says of objects."""

    required: set[str]
    properties: dict[str, list[Any]]
    is_closed: bool


def exclusive(schema: Node) -> Node:
    """The schema with each `oneOf` as `anyOf` where members could be kept apart."""
    for path, _ in sorted(all_schemas(schema), key=lambda place: -len(place[0])):
        node = found_at(schema, path)
        members = node.get("oneOf")
        if isinstance(members, list) and members and isinstance(node.get("allOf", []), list):
            branches = _Members(node, members, schema).branches()
            if branches is not None:
                rest = {key: value for key, value in node.items() if key != "oneOf"}
                if "anyOf" in rest:
                    rest["allOf"] = [*rest.get("allOf", ()), {"anyOf": rest["anyOf"]}]
                schema = replaced(schema, path, {**rest, "anyOf": branches})
    return schema


def overlapping(schema: Node) -> list[Path]:
    """Where a `oneOf` is whose members could not be kept apart, inner ones first."""
    return [
        path
        for path, node in sorted(all_schemas(schema), key=lambda place: -len(place[0]))
        if isinstance(members := node.get("oneOf"), list)
        and _Members(node, members, schema).branches() is None
    ]


class _Members:
    """The members of one `oneOf`.

    Args:
        node: the schema that has it.
        root: what references point into.
    """

    def __init__(self, node: Node, members: Sequence[Any], root: Node) -> None:
        self._root, self._members = root, members
        own = {key: value for key, value in node.items() if key != "oneOf"}
        self._types = self._types_of(own)
        self._required = self._object_of(own).required

    def branches(self) -> list[Any] | None:
        """Members of which no value fits two; None where they cannot be kept apart."""
        branches: list[Any] = []
        for i, member in enumerate(self._members):
            found = self._branches_of(i, member)
            if found is None or len(branches) + len(found) > MAX_BRANCHES:
                return None
            branches += found
        return branches or None

    def _branches_of(self, i: int, member: Any) -> list[Any] | None:
        """A member without what fits another one too; None where that cannot be said."""
        choices: list[list[str]] = []
        apart: list[Any] = []
        is_object = False
        for j, other in enumerate(self._members):
            if i == j or self._are_disjoint(member, other, self._types):
                continue
            common = self._types_of(member) & self._types_of(other) & self._types
            if not common:
                continue
            are_objects = common <= {"object"}
            keys = sorted(self._object_of(other).required - self._needed_by(member))
            if keys and (are_objects or (_is_of_objects(member) and _is_of_objects(other))):
                is_object |= not are_objects  # anything else would fit both
                choices.append(keys)
                continue
            ways = self._left_of(member, other)
            if not ways:
                return ways
            apart.append(ways[0] if len(ways) == 1 else {"anyOf": ways})
        return _conjoined(member, choices, apart, is_object=is_object)

    def _needed_by(self, member: Any) -> set[str]:
        return self._object_of(member).required | self._required

    def _left_of(self, member: Any, other: Any) -> list[Any] | None:
        """Schemas of which whatever fits one does not fit `other`; None where none is known.

        Only such are listed that something of `member` may fit: none where all of it fits `other`.
        """
        values = _listed(member)
        if values is not None:
            found = [fits(value, other, self._root) for value in values]
            left = [value for value, fit in zip(values, found, strict=True) if fit is False]
            return None if None in found else [{"enum": left}] if left else []
        opposite = Negation(self._root, is_exact=False).of(other)
        ways = [] if opposite in (None, False) else _choices_of(opposite)
        first, second = self._object_of(member), self._object_of(other)
        if second.is_closed:
            more = first.properties.keys() - second.properties.keys()
            ways += [{"type": "object", "required": [key]} for key in sorted(more)]
        types = self._types_of(member) & self._types
        left = _smallest([way for way in ways if self._types_of(way) & types])
        if not left and _is_of_required(other) and types <= {"object"}:
            return []  # whatever of `member` is an object has these properties
        return left or None

    def _are_disjoint(
        self, one: Any, other: Any, types: frozenset[str] = _ALL, depth: int = _MAX_DEPTH
    ) -> bool:
        """Whether no value of some types fits both; False where that is not seen."""
        if not self._types_of(one) & self._types_of(other) & types:
            return True
        values, others = self._values_of(one), self._values_of(other)
        if values is not None and others is not None:
            return values.isdisjoint(others)
        if not depth or not (self._types_of(one) & self._types_of(other) & types) <= {"object"}:
            return False
        first, second = self._object_of(one), self._object_of(other)
        return any(
            self._differ(key, first, second, depth) for key in first.required | second.required
        )

    def _differ(self, key: str, first: _Object, second: _Object, depth: int) -> bool:
        """Whether a property tells objects of two schemas apart."""
        for one, other in ((first, second), (second, first)):
            if key in one.required and other.is_closed and key not in other.properties:
                return True
            if key in one.required and False in other.properties.get(key, []):
                return True
        if key not in first.required or key not in second.required:
            return False
        pairs = itertools.product(first.properties.get(key, []), second.properties.get(key, []))
        return any(self._are_disjoint(one, other, depth=depth - 1) for one, other in pairs)

    def _parts(self, schema: Any, depth: int = _MAX_DEPTH) -> Iterator[Node]:
        """The schema and all that must hold with it."""
        if schema is False:
            yield {"type": []}
        if not isinstance(schema, dict) or not depth:
            return
        yield schema
        if isinstance(reference := schema.get("$ref"), str):
            yield from self._parts(target(self._root, reference), depth - 1)
        if isinstance(schemas := schema.get("allOf"), list):
            for each in schemas:
                yield from self._parts(each, depth - 1)

    def _types_of(self, schema: Any, depth: int = _MAX_DEPTH) -> frozenset[str]:
        """The types that values may have; all where that is not seen."""
        types: frozenset[str] = _ALL
        for part in self._parts(schema):
            if "type" in part:
                named = part["type"] if isinstance(part["type"], list) else [part["type"]]
                types &= frozenset().union(*(_TYPES.get(str(name), _ALL) for name in named))
            if (values := _values(part)) is not None:
                types &= frozenset().union(*map(_type_of, values))
            for key in ("anyOf", "oneOf"):
                if depth and isinstance(inner := part.get(key), list):
                    types &= frozenset().union(*(self._types_of(s, depth - 1) for s in inner))
        return types

    def _values_of(self, schema: Any) -> set[Any] | None:
        """The values that are allowed, if these are few and plain."""
        for part in self._parts(schema):
            values = _values(part)
            if values is not None and not any(isinstance(v, list | dict) for v in values):
                return {(type(v) is bool, v) for v in values}
        return None

    def _object_of(self, schema: Any) -> _Object:
        required: set[str] = set()
        properties: dict[str, list[Any]] = {}
        is_closed = False
        for part in self._parts(schema):
            if isinstance(keys := part.get("required"), list):
                required.update(key for key in keys if isinstance(key, str))
            own = part.get("properties")
            for key, value in (own if isinstance(own, dict) else {}).items():
                properties.setdefault(key, []).append(value)
            is_closed |= part.get("additionalProperties") is False and not part.get(
                "patternProperties"
            )
        return _Object(required, properties, is_closed)


def _conjoined(
    member: Any, choices: list[list[str]], apart: list[Any], *, is_object: bool
) -> list[Any]:
    """The member with what keeps it apart, for each least set of properties to go without."""
    if not choices:
        return [{"allOf": [member, *apart]} if apart else member]
    ways = {frozenset(way) for way in itertools.islice(itertools.product(*choices), 1000)}
    kind = {"type": "object"} if is_object else {}
    return [
        {"allOf": [member, {**kind, "properties": dict.fromkeys(sorted(way), False)}, *apart]}
        for way in sorted(ways, key=sorted)
        if not any(other < way for other in ways)
    ]


def _smallest(ways: list[Any]) -> list[Any]:
    """As many of the ways as are not long, the shortest first."""
    sizes = {i: len(repr(way)) for i, way in enumerate(ways)}
    order = sorted(sizes, key=sizes.__getitem__)
    total = itertools.accumulate(sizes[i] for i in order)
    return [ways[i] for i, size in zip(order, total, strict=True) if size <= MAX_CHARS]


def _choices_of(schema: Any) -> list[Any]:
    """Schemas of which one must fit, in place of one."""
    is_choice = isinstance(schema, dict) and set(schema) == {"anyOf"}
    return list(schema["anyOf"]) if is_choice else [schema]


def _listed(member: Any) -> list[Any] | None:
    """The values of a member that lists plain ones; None for any other."""
    values = _values(member) if isinstance(member, dict) else None
    if values is None or any(isinstance(value, list | dict) for value in values):
        return None
    return values


def _is_of_objects(schema: Any) -> bool:
    return isinstance(schema, dict) and set(schema) <= _OF_OBJECTS


def _is_of_required(schema: Any) -> bool:
    return isinstance(schema, dict) and set(schema) == {"required"}


def _values(schema: Node) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _type_of(value: Any) -> set[str]:
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"integer"} if float(value).is_integer() else {"fraction"}
    return (
        {"string"} if isinstance(value, str) else {"array" if isinstance(value, list) else "object"}
    )
