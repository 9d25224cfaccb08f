"""States of a format, made of the texts around and within calls."""

from __future__ import annotations

import re
from collections.abc import Iterable

from server.conversation.parsing.format import Between, Exit, Field, State
from server.conversation.parsing.learning.atoms import ID, chunks

_IS_TAG = re.compile(r"<.*>|\[[^\[\]]+\]|<\S.*")
_SHORT = 3
_NAME_PREFIX = re.compile(r"(?<=[>|\]])\w+[.:]\Z")
_NAME_SUFFIX = re.compile(r"([^\w\s<]*)\{id\}")


class StateMaker:
    """Collects states, each of which looks for a piece of a literal text.

    White space is not looked for: models are free with it. A call's id or number may be anything.
    """

    def __init__(self) -> None:
        self.states: dict[str, State] = {}

    def add(self, state: State, name: str = "") -> str:
        """Add a state; returns its name."""
        name = name or f"piece {len(self.states)}"
        self.states[name] = state
        return name

    def markers(self) -> list[str]:
        """The markers of all states that are no content wherever they are."""
        found = (
            way.marker
            for state in self.states.values()
            if isinstance(state, Between | Field)
            for way in state.exits
        )
        return [marker for marker in dict.fromkeys(found) if is_marked(marker)]

    def way(self, literal: str, to: str, *, ends_call: bool = False) -> Exit | None:
        """The exit by which a literal leads to a state; None for a literal that is blank."""
        pieces = [piece for piece in chunks(literal) if piece == ID or not _is_closing(piece)]
        if not pieces or ID in (pieces[0], pieces[-1]):
            return None
        for i in range(len(pieces) - 1, 0, -1):
            if pieces[i] == ID:
                continue
            if pieces[i - 1] == ID:
                to = self.add(Field("ignored", (Exit(pieces[i], to=to),)))
            else:
                to = self.add(Between((inner(Exit(pieces[i], to=to)),)))
        return Exit(pieces[0], to=to, ends_call=ends_call)

    def marker(self, literal: str, to: str) -> Exit | None:
        """The exit from content: a tag alone, or else all of the literal, lest words mean calls."""
        pieces = chunks(literal)
        if pieces and not _IS_TAG.fullmatch(pieces[0]):
            return Exit(literal.strip(), to=to, eats_space=True)
        way = self.way(literal, to)
        return None if way is None else Exit(way.marker, to=way.to, eats_space=True)


def inner(way: Exit) -> Exit:
    """An exit of a state that drops brackets: its marker without those at its beginning."""
    return Exit(way.marker.lstrip("]}"), to=way.to, ends_call=way.ends_call)


def _is_closing(piece: str) -> bool:
    """Whether a piece is nothing but what ends JSON."""
    return not piece.strip("]}")


def between(ways: Iterable[Exit | None]) -> Between:
    """A state of these exits, of the first where several have one marker."""
    found: dict[str, Exit] = {}
    for way in ways:
        if way is not None and (own := inner(way)).marker:
            found.setdefault(own.marker, own)
    return Between(tuple(found.values()))


def is_marked(text: str) -> bool:
    """Whether a text is so plainly a marker that it is no content wherever it is."""
    return text[:1] in "<[" and len(text) > _SHORT


def name_field(before: str, following: str) -> tuple[str, str, str]:
    """Cut from the texts around a name what may be missing there.

    Returns:
        both texts without it, and the expression of a name with it; empty for the name alone.
    """
    prefix = _NAME_PREFIX.search(before.rstrip())
    suffix = _NAME_SUFFIX.match(following)
    if prefix is None and suffix is None:
        return before, following, ""
    pattern = r"(?P<name>[\w.:/-]+?)"
    if prefix is not None:
        before = before.rstrip()[: prefix.start()]
        pattern = f"(?:{re.escape(prefix.group())})?{pattern}"
    if suffix is not None:
        following = following[suffix.end() :]
        pattern += rf"(?:{re.escape(suffix[1])}[\w-]+)?"
    return before, following, pattern
