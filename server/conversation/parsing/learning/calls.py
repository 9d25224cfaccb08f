"""Where calls are in a rendered text, and in which manner they are written."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from server.conversation.parsing.learning.probe import KEYS, ProbeCall

Manner = Literal["object", "keyed", "named", "python", "bare", "fields"]
"""A JSON object that holds name and arguments, or one whose key is the name; a name and then JSON
arguments; a call in Python; a name and an object with bare keys; a name and then fields."""

_MAX_TRIES = 64
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class CallPlace:
    """Where one call is.

    Attributes:
        body, name, arguments: beginnings and ends. A body is all that one reader reads: the
            outermost JSON value that holds the call, or the name with what follows it.
        name_keys, argument_keys: the keys of an object that have them.
        is_listed: the body is a list, in which more calls may be.
        quote: around strings of bare arguments.
        fields: of each argument, where its key and its value are.
    """

    manner: Manner
    body: tuple[int, int]
    name: tuple[int, int]
    arguments: tuple[int, int]
    name_keys: tuple[str, ...] = ()
    argument_keys: tuple[str, ...] = ()
    is_listed: bool = False
    quote: str = ""
    fields: tuple[tuple[int, int], ...] = ()


def find_calls(text: str, calls: Sequence[ProbeCall], at: int = 0) -> list[CallPlace] | None:
    """Where calls are, in their order; None where not all of them are found."""
    places: list[CallPlace] = []
    for call in calls:
        place = _find(text, call, at)
        if place is None:
            return None
        places.append(place)
        at = place.arguments[1]
    return places


def _find(text: str, call: ProbeCall, at: int) -> CallPlace | None:
    if text.find(call.name, at) < 0:
        return None
    for find in (_in_json, _in_python, _with_bare_keys, _in_fields):
        if (place := find(text, call, at)) is not None:
            return place
    return None


def _before(text: str, marks: str, begin: int, end: int) -> Iterator[int]:
    """Where one of some characters is, the last first."""
    found = 0
    for at in range(end - 1, begin - 1, -1):
        if text[at] in marks:
            yield at
            found += 1
            if found == _MAX_TRIES:
                return


def _decoded(text: str, at: int) -> tuple[Any, int] | None:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def _is_of(value: Any, arguments: dict[str, Any]) -> bool:
    """Whether a value is the arguments, or JSON of them."""
    if isinstance(value, str) and value[:1] == "{":
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return bool(value == arguments)


def _in_json(text: str, call: ProbeCall, at: int) -> CallPlace | None:
    first = str(next(iter(call.arguments.values())))
    for begin in _before(text, '{"', at, text.find(first, at)):
        found = _decoded(text, begin)
        if found is not None and _is_of(found[0], call.arguments):
            return _around(text, call, at, (begin, found[1]))
    return None


def _around(text: str, call: ProbeCall, at: int, arguments: tuple[int, int]) -> CallPlace | None:
    """The call whose arguments as JSON are known."""
    begin, end = arguments
    for outer in _before(text, "{", at, begin):
        found = _decoded(text, outer)
        if found is None or found[1] < end or not isinstance(found[0], dict):
            continue
        value: dict[str, Any] = found[0]
        name = text.find(call.name, outer)
        place = CallPlace("object", (outer, found[1]), (name, name + len(call.name)), arguments)
        if value == {call.name: call.arguments}:
            return _outermost(text, place, at, "keyed", (), ())
        names = tuple(key for key, own in value.items() if own == call.name)
        keys = tuple(key for key, own in value.items() if _is_of(own, call.arguments))
        if names and keys:
            return _outermost(text, place, at, "object", names, keys)
    name = text.rfind(call.name, at, begin)
    if name < 0:
        return None
    return CallPlace("named", (name, end), (name, name + len(call.name)), arguments)


def _outermost(
    text: str,
    place: CallPlace,
    at: int,
    manner: Manner,
    names: tuple[str, ...],
    keys: tuple[str, ...],
) -> CallPlace:
    """The same call with all of the JSON value that holds it."""
    body, is_listed = place.body, False
    for outer in _before(text, "{[", at, body[0]):
        found = _decoded(text, outer)
        if found is not None and found[1] >= body[1]:
            body, is_listed = (outer, found[1]), is_listed or isinstance(found[0], list)
    return CallPlace(manner, body, place.name, place.arguments, names, keys, is_listed)


def _in_python(text: str, call: ProbeCall, at: int) -> CallPlace | None:
    name = text.find(f"{call.name}(", at)
    end = text.find(")", name) + 1
    if name < 0 or not end:
        return None
    try:
        tree = ast.parse(text[name:end], mode="eval").body
        assert isinstance(tree, ast.Call)
        own = {word.arg: ast.literal_eval(word.value) for word in tree.keywords}
    except (SyntaxError, ValueError, AssertionError):
        return None
    opening = text.rfind("[", at, name)
    if own != call.arguments or opening < 0 or "(" in text[opening:name].split(")")[-1]:
        return None
    closing = text.find("]", end) + 1
    name_end = name + len(call.name)
    return CallPlace(
        "python", (opening, closing), (name, name_end), (name_end + 1, end - 1), is_listed=True
    )


def _with_bare_keys(text: str, call: ProbeCall, at: int) -> CallPlace | None:
    first, second = (re.escape(str(value)) for value in call.arguments.values())
    pattern = (
        rf"{call.name}\s*(?P<body>\{{\s*{KEYS[0]}\s*:\s*(?P<quote>\S+?){first}(?P=quote)"
        rf"\s*,\s*{KEYS[1]}\s*:\s*(?P=quote){second}(?P=quote)\s*\}})"
    )
    match = re.compile(pattern).search(text, at)
    if match is None:
        return None
    name = match.start(), match.start() + len(call.name)
    return CallPlace("bare", match.span(), name, match.span("body"), quote=match["quote"])


def _in_fields(text: str, call: ProbeCall, at: int) -> CallPlace | None:
    """A call whose keys and values follow one another, with anything between."""
    spots: list[tuple[int, int]] = []
    first = text.find(KEYS[0], at)
    name = text.rfind(call.name, at, first) if first >= 0 else -1
    if name < 0:
        return None
    end = name + len(call.name)
    for part in (part for pair in call.arguments.items() for part in pair):
        spot = _word(text, part, end)
        if spot is None:
            return None
        spots.append(spot)
        end = spot[1]
    name_end = name + len(call.name)
    return CallPlace(
        "fields", (name, end), (name, name_end), (spots[0][0], end), fields=tuple(spots)
    )


def _word(text: str, value: Any, at: int) -> tuple[int, int] | None:
    """Where a value is written, as JSON or as Python has it; a text as it is."""
    words = (value,) if isinstance(value, str) else (json.dumps(value), str(value))
    for word in words:
        if (begin := text.find(word, at)) >= 0:
            return begin, begin + len(word)
    return None
