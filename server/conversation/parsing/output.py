"""What a machine gives out: events for the message, and stretches of text with their parts.

While it is uncertain whether a body is a call, its text is collected here. When it is one,
the text has the parts it was read as; where the body breaks, the text is content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from typing import Literal, NamedTuple

from server.conversation.parsing.format import Part

EventKind = Literal["reasoning", "content", "call", "arguments"]


class Event(NamedTuple):
    """Something new of the message: text of a part, a call by its name, or more arguments."""

    kind: EventKind
    text: str


Span = tuple[int, Part]
"""The end and the part of a stretch of the text, which begins where the one before it ends. It is
no class of its own because making those is slow, and there is one for every marker."""

SENTINELS = "\ud800-\udfff"
"""Half surrogate pairs, within a regular expression: they stand for special tokens."""
_SENTINEL = re.compile(f"([{SENTINELS}])")


_Doubt = tuple[str, Part, bool]
"""Text whose part is uncertain, the part that it has in a call, and whether it is a marker."""


class Output:
    """Collects events and spans.

    Attributes:
        events, spans: what was given out; whoever reads them takes them away. The last span may
            still grow.
        position: characters whose part is certain.
        is_certain: whether a call has begun and is certain.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.spans: list[Span] = []
        self.position = 0
        self.is_certain = False
        self._doubts: list[_Doubt] | None = None
        self._name: str | None = None
        self._num_keys = 0

    @property
    def is_uncertain(self) -> bool:
        """Whether a call is read that is not accepted yet."""
        return self._doubts is not None

    @property
    def name(self) -> str | None:
        """The name of the call that is read."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    def show(self, text: str, part: Literal["reasoning", "content"]) -> None:
        """Give out text of the message; special tokens in it are markup."""
        pieces = [text] if text.isascii() else _SENTINEL.split(text)
        for i, piece in enumerate(pieces):
            if i % 2:
                self.take(piece)
            elif piece:
                self.events.append(Event(part, piece))
                self.take(piece, part)

    def take(self, text: str, part: Part = "markup", *, is_marker: bool = False) -> None:
        """Go past text that is not shown as it is.

        Args:
            is_marker: it is markup whatever comes.
        """
        if not text:
            return
        if self._doubts is not None:
            self._doubts.append((text, part, is_marker))
            return
        self.position += len(text)
        spans = self.spans
        if spans and spans[-1][1] == part:
            spans[-1] = (self.position, part)
        else:
            spans.append((self.position, part))

    def begin_call(self) -> None:
        """Begin to read a call; what is taken from here on is uncertain."""
        if self._doubts is None:
            self._doubts = []
        self.is_certain, self._name, self._num_keys = False, None, 0

    def accept(self) -> None:
        """Accept the call: its name is given out, and what was taken is certain."""
        doubts, self._doubts = self._doubts or [], None
        for text, part, _ in doubts:
            self.take(text, part)
        self.is_certain = True
        self.events.append(Event("call", self._name or ""))

    def add_arguments(self, text: str) -> None:
        """Give out more of the arguments' JSON."""
        if text:
            self.events.append(Event("arguments", text))

    def add_argument(self, key: str, value: str) -> None:
        """Give out one more argument of an object that is put together here.

        Args:
            key, value: JSON.
        """
        if not self.is_certain:
            self.accept()
        self.add_arguments(f"{', ' if self._num_keys else '{'}{key}: {value}")
        self._num_keys += 1

    def close_arguments(self) -> None:
        """Give out the end of an object that is put together here, and end the call."""
        if not self.is_certain:
            self.accept()
        self.add_arguments("}" if self._num_keys else "{}")
        self.end_call()

    def end_call(self) -> None:
        """End a call that is certain."""
        self.is_certain = False

    def drop(self) -> None:
        """Give up a call that a reply's end cut off before it was certain: none of it is shown."""
        doubts, self._doubts = self._doubts or [], None
        for text, _, _ in doubts:
            self.take(text)

    def break_off(
        self,
        find_marker: Callable[[str, int], re.Match[str] | None],
        part: Literal["reasoning", "content"] = "content",
    ) -> None:
        """Give up the call that is read; what is uncertain becomes a text again, markers aside.

        Args:
            find_marker: finds the next marker from a place on; a match without a group is none.
            part: of the text.
        """
        doubts, self._doubts = self._doubts or [], None
        self.is_certain = False
        is_blank = not any(text.strip() for text, _, is_marker in doubts if not is_marker)
        for is_marker, run in groupby(doubts, key=lambda doubt: doubt[2]):
            text = "".join(doubt[0] for doubt in run)
            if is_marker or is_blank:
                self.take(text)
            else:
                self._show_between(text, find_marker, part)

    def _show_between(
        self,
        text: str,
        find_marker: Callable[[str, int], re.Match[str] | None],
        part: Literal["reasoning", "content"],
    ) -> None:
        at = 0
        while (match := find_marker(text, at)) is not None and match.lastindex is not None:
            self.show(text[at : match.start()], part)
            self.take(match.group())
            at = match.end()
        self.show(text[at:], part)
