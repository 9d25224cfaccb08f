"""Which keyword of a JSON schema llguidance refuses, and schemas without what it cannot enforce.

Its messages name no place. One is found by trying schemas within the schema by themselves, as long
as they are refused in the same words, and then that schema without one keyword after another.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple

from server.errors import ApiError, bad_request
from server.structured.expressed import expressed
from server.structured.one_of import exclusive, overlapping
from server.structured.subschemas import (
    Node,
    Path,
    all_schemas,
    definitions,
    found_at,
    inner_schemas,
    path_in,
    replaced,
)

Try = Callable[[Node], str | None]
"""What is wrong with a schema by itself, in llguidance's words; None where nothing is."""

SEARCH_S = 2.0
"""Longest search for a place; without one the message is alone."""
MAX_DROPPED = 256
MAX_PASSES = 3
_SHOWN_CHARS = 150
_QUOTED = re.compile(r" *(\d+ \||\^+ *$)")
_UNKNOWN = "Unimplemented keys: "
_ANNOTATION = "Unknown format: "
"""JSON Schema takes a format that nobody knows for a remark."""
_ONE_OF = "oneOf constraints are not supported"
_CIRCULAR = "circular references with sibling keys"
_WITHIN = re.compile(r"\s+while processing ")
"""What follows in a message names a schema that others refer to."""
_NOT_ENFORCED = (
    _UNKNOWN,
    _ANNOTATION,
    _ONE_OF,
    "regex parse error",
    "min/maxProperties only supported",
    "patternProperty regexes",
    "can't determine if patternProperty regexes",
    _CIRCULAR,
    "lookarounds not supported",
    "Unable to determine if regex is empty",
    "Schema intersection stack level exceeded",
)
"""How messages begin that mean a limit of llguidance's, not a mistake in the schema."""


_STRUCTURE = (
    *("required", "properties", "additionalProperties", "items", "prefixItems", "$ref", "type"),
    *("$defs", "definitions", "$id", "id", "$schema"),
)
"""Keywords that are blamed last and never dropped: a schema says little without them."""
_KEPT = ("$ref", "$defs", "definitions")
"""What is not dropped beside a reference."""


class Place(NamedTuple):
    """Where a schema is refused.

    Attributes:
        path: of the schema that is refused by itself.
        keyword: without which it would be refused in other words, or not at all; None where it is
            no single one.
    """

    path: Path
    keyword: str | None


def find_place(schema: Node, message: str, refused: Try) -> Place | None:
    """Where the schema earns the message; None where that takes too long to find."""
    deadline = time.monotonic() + SEARCH_S
    cause = _cause(message)
    path: Path = ()
    shared = definitions(schema)
    node = schema
    while (inner := _culprit_within(node, shared, cause, refused, deadline)) is not None:
        path, node = (*path, *inner[0]), inner[1]
    for keyword in sorted(node, key=_blame):
        if time.monotonic() > deadline:
            return None
        rest = {key: value for key, value in node.items() if key != keyword}
        if _cause(refused({**shared, **rest})) != cause:
            return Place(path, keyword)
    return Place(path, None)


def _cause(message: str | None) -> str | None:
    """A message without where its schema is referred to from."""
    return None if message is None else _WITHIN.split(message)[0]


def _blame(keyword: str) -> int:
    """Where a keyword is among those that may be to blame."""
    return 1 + _STRUCTURE.index(keyword) if keyword in _STRUCTURE else 0


def _culprit_within(
    node: Node, shared: Node, cause: str | None, refused: Try, deadline: float
) -> tuple[Path, Node] | None:
    for path, inner in inner_schemas(node):
        if time.monotonic() > deadline:
            return None
        if _cause(refused({**shared, **inner})) == cause:
            return path, inner
    return None


def without_refused(
    schema: Node, param: str, refused: Try, *, lenient: bool
) -> tuple[Node, list[str]]:
    """The schema without unknown formats, and where these were; in other words, if these help.

    Args:
        lenient: all other keywords that cannot be enforced are dropped too; `oneOf` is read as
            `anyOf`, and counts as dropped.

    Raises:
        ApiError: something else is wrong with it.
    """
    droppable = _NOT_ENFORCED if lenient else (_ANNOTATION,)
    dropped: list[str] = []

    def left(node: Node) -> str | None:
        """What is wrong however it is said."""
        message = refused(node)
        otherwise = node if message is None else _said_otherwise(node)
        found = message if otherwise == node else refused(otherwise)
        return found if found is None or found.startswith(_NOT_ENFORCED) else message

    while (message := left(schema)) is not None:
        may_drop = message.startswith(droppable) and len(dropped) < MAX_DROPPED
        found = _named(schema, message) if may_drop else []
        if not found:
            place = find_place(schema, message, left)
            found = _at(schema, place, message) if may_drop else []
            if not found:
                raise refusal(param, message, place, can_be_dropped=not lenient)
        for path, keyword in found:
            schema = _without(schema, path, keyword)
            dropped.append(path_in(param, (*path, keyword)))
    return schema if refused(schema) is None else _said_otherwise(schema), dropped


def _said_otherwise(schema: Node) -> Node:
    """The schema in other keywords, those of schemas that are put in place of references too."""
    for _ in range(MAX_PASSES):
        said = exclusive(expressed(schema))
        if said == schema:
            break
        schema = said
    return schema


def _named(schema: Node, message: str) -> list[tuple[Path, str]]:
    """Where a schema has the keywords, or the format, that a message names; inner ones first.

    Messages that name them say nothing of where, and are of all that have them.
    """
    if message.startswith(_ANNOTATION):
        name = _WITHIN.split(message)[0].removeprefix(_ANNOTATION)
        found = [(path, "format") for path, n in all_schemas(schema) if n.get("format") == name]
    elif message.startswith(_UNKNOWN):
        keywords = re.findall(r'"([^"]+)"', message)
        found = [
            (path, key) for path, node in all_schemas(schema) for key in keywords if key in node
        ]
    else:
        found = []
    return sorted(found, key=lambda place: -len(place[0]))


def _at(schema: Node, place: Place | None, message: str) -> list[tuple[Path, str]]:
    """What to drop where a schema is refused for more than one keyword, or by way of references.

    Beside a reference into itself it is what is there, or the reference; of `oneOf` all whose
    members cannot be kept apart, or all where keeping them apart takes too much.
    """
    if place is not None and place.keyword not in (None, *_STRUCTURE):
        return [(place.path, str(place.keyword))]
    if place is not None and place.keyword == "$ref" and message.startswith(_CIRCULAR):
        beside = [key for key in found_at(schema, place.path) if key not in _KEPT]
        return [(place.path, key) for key in beside or ["$ref"]]
    if message.startswith(_ONE_OF):
        choices = [path for path, node in all_schemas(schema) if "oneOf" in node]
        inner_first = sorted(choices, key=lambda path: -len(path))
        return [(path, "oneOf") for path in overlapping(schema) or inner_first]
    return []


def _without(schema: Node, path: Path, keyword: str) -> Node:
    """A copy of the schema in which the one at `path` lacks a keyword."""
    node = found_at(schema, path)
    left = {key: value for key, value in node.items() if key != keyword}
    if keyword == "oneOf":
        left["allOf"] = [*left.get("allOf", ()), {"anyOf": node[keyword]}]
    whole: Node = replaced(schema, path, left)
    return whole


def refusal(
    param: str, message: str, place: Place | None, *, can_be_dropped: bool = True
) -> ApiError:
    """The 400 of a schema that is refused."""
    words = shortened(message)
    if place is None:
        return bad_request(param, f"{param} is refused: {words}", "grammar_refused")
    where = path_in(param, place.path if place.keyword is None else (*place.path, place.keyword))
    if can_be_dropped and message.startswith(_NOT_ENFORCED):
        return bad_request(
            where,
            f"{where} cannot be enforced ({words}): leave it out, or let "
            "structured_outputs.lenient or --lenient-schemas drop it",
            "grammar_refused",
        )
    return bad_request(where, f"{where} is refused: {words}", "grammar_refused")


def shortened(message: str) -> str:
    """The message on one line, without the lines it quotes, and without its middle if long."""
    lines = [line for line in message.splitlines() if not _QUOTED.match(line)]
    whole = " ".join(" ".join(lines).split())
    if len(whole) <= 2 * _SHOWN_CHARS:
        return whole
    return f"{whole[:_SHOWN_CHARS]} … {whole[-_SHOWN_CHARS:]}"
