"""Which keyword of a JSON schema llguidance refuses, and schemas without what it cannot enforce.

Its messages name no place. One is found by trying schemas within the schema by themselves, as long
as they are refused in the same words, and then that schema without one keyword after another.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from server.errors import ApiError, bad_request
from server.structured.json_schema import (
    Node,
    Path,
    all_schemas,
    definitions,
    inner_schemas,
    path_in,
    replaced,
)
from server.structured.negation import expressed
from server.structured.one_of import exclusive

Try = Callable[[Node], str | None]
"""What is wrong with a schema by itself, in llguidance's words; None where nothing is."""

SEARCH_S = 2.0
"""Longest search for a place; without one the message stands alone."""
MAX_DROPPED = 256
_SHOWN_CHARS = 150
_QUOTED = re.compile(r" *(\d+ \||\^+ *$)")
_UNKNOWN = "Unimplemented keys: "
_ANNOTATION = "Unknown format: "
"""JSON Schema takes a format that nobody knows for a remark."""
_ONE_OF = "oneOf constraints are not supported"
_NOT_ENFORCED = (
    _UNKNOWN,
    _ANNOTATION,
    _ONE_OF,
    "regex parse error",
    "min/maxProperties only supported",
    "patternProperty regexes",
    "can't determine if patternProperty regexes",
    "circular references with sibling keys",
)
"""How messages begin that mean a limit of llguidance's, not a mistake in the schema."""


_STRUCTURE = (
    *("required", "properties", "additionalProperties", "items", "prefixItems", "$ref", "type"),
    *("$defs", "definitions"),
)
"""Keywords that are blamed last and never dropped: a schema says little without them."""


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
    path: Path = ()
    shared = definitions(schema)
    node = schema
    while (inner := _culprit_within(node, shared, message, refused, deadline)) is not None:
        path, node = (*path, *inner[0]), inner[1]
    for keyword in sorted(node, key=_blame):
        if time.monotonic() > deadline:
            return None
        rest = {key: value for key, value in node.items() if key != keyword}
        if refused({**shared, **rest}) != message:
            return Place(path, keyword)
    return Place(path, None)


def _blame(keyword: str) -> int:
    """Where a keyword stands among those that may be to blame."""
    return 1 + _STRUCTURE.index(keyword) if keyword in _STRUCTURE else 0


def _culprit_within(
    node: Node, shared: Node, message: str, refused: Try, deadline: float
) -> tuple[Path, Node] | None:
    for path, inner in inner_schemas(node):
        if time.monotonic() > deadline:
            return None
        if refused({**shared, **inner}) == message:
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
    while (message := refused(schema)) is not None:
        otherwise = exclusive(expressed(schema))
        if otherwise != schema and refused(otherwise) is None:
            return otherwise, dropped
        may_drop = message.startswith(droppable) and len(dropped) < MAX_DROPPED
        found = _named(schema, message) if may_drop else []
        if not found:
            place = find_place(schema, message, refused)
            if place is None or place.keyword in (None, *_STRUCTURE) or not may_drop:
                raise refusal(param, message, place, can_be_dropped=not lenient)
            found = [(place.path, str(place.keyword))]
        for path, keyword in found:
            schema = _without(schema, path, keyword)
            dropped.append(path_in(param, (*path, keyword)))
    return schema, dropped


def _named(schema: Node, message: str) -> list[tuple[Path, str]]:
    """Where a schema has the keywords, or the format, that a message names; inner ones first.

    Messages that name them say nothing of where, and are of all that have them.
    """
    if message.startswith(_ANNOTATION):
        name = message.removeprefix(_ANNOTATION)
        found = [(path, "format") for path, n in all_schemas(schema) if n.get("format") == name]
    elif message.startswith(_UNKNOWN):
        keywords = re.findall(r'"([^"]+)"', message)
        found = [
            (path, key) for path, node in all_schemas(schema) for key in keywords if key in node
        ]
    else:
        found = []
    return sorted(found, key=lambda place: -len(place[0]))


def _without(schema: Node, path: Path, keyword: str) -> Node:
    """A copy of the schema in which the one at `path` lacks a keyword."""
    node: Any = schema
    for key in path:
        node = node[key]
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
