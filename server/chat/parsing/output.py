"""What a machine gives out: events for the message, and stretches of text with their parts.

While it is uncertain whether a body is a call, its text is collected here. When the call stands,
the text has the parts it was read as; where the body breaks, the text is content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from typing import Literal, NamedTuple

from server.chat.parsing.format import Part

EventKind = Literal["reasoning", "content", "call", "arguments"]


class Event(NamedTuple):
    """Something new of the message: text of a part, a call by its name, or more arguments."""

    kind: EventKind
    text: str


class Span(NamedTuple):
    """A stretch of the text, from where the one before it ends."""

    end: int
    part: Part


SENTINELS = "\ud800-\udfff"
"""Half surrogate pairs, within a regular expression: they stand for special tokens."""
_SENTINEL = re.compile(f"([{SENTINELS}])")


class _Doubt(NamedTuple):
    text: str
    part: Part
    is_marker: bool


class Output:
    """Collects events and spans.

    Attributes:
        events, spans: what was given out; whoever reads them takes them away. The last span may
            still grow.
        position: characters whose part is certain.
        stands: whether a call has begun and is certain.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.spans: list[Span] = []
        self.position = 0
        self.stands = False
        self._doubts: list[_Doubt] | None = None
        self._name: str | None = None
        self._num_keys = 0

    @property
    def is_uncertain(self) -> bool:
        """Whether a call is read that does not stand yet."""
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
            if piece:
                if i % 2:
                    self._pass(1, "markup")
                else:
                    self.events.append(Event(part, piece))
                    self._pass(len(piece), part)

    def take(self, text: str, part: Part = "markup", *, is_marker: bool = False) -> None:
        """Go past text that is not shown as it is.

        Args:
            is_marker: it is markup whatever comes.
        """
        if not text:
            return
        if self._doubts is not None:
            self._doubts.append(_Doubt(text, part, is_marker))
        else:
            self._pass(len(text), part)

    def _pass(self, num_chars: int, part: Part) -> None:
        self.position += num_chars
        if self.spans and self.spans[-1].part == part:
            self.spans[-1] = Span(self.position, part)
        else:
            self.spans.append(Span(self.position, part))

    def begin_call(self) -> None:
        """Begin to read a call; what is taken from here on is uncertain."""
        if self._doubts is None:
            self._doubts = []
        self.stands, self._name, self._num_keys = False, None, 0

    def stand(self) -> None:
        """Let the call stand: its name is given out, and what was taken is certain."""
        doubts, self._doubts = self._doubts or [], None
        for doubt in doubts:
            self._pass(len(doubt.text), doubt.part)
        self.stands = True
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
        if not self.stands:
            self.stand()
        self.add_arguments(f"{', ' if self._num_keys else '{'}{key}: {value}")
        self._num_keys += 1

    def close_arguments(self) -> None:
        """Give out the end of an object that is put together here, and end the call."""
        if not self.stands:
            self.stand()
        self.add_arguments("}" if self._num_keys else "{}")
        self.end_call()

    def end_call(self) -> None:
        """End a call that stands."""
        self.stands = False

    def break_off(self, find_marker: Callable[[str, int], re.Match[str] | None]) -> None:
        """Give up the call that is read; what is uncertain becomes content, markers aside.

        Args:
            find_marker: finds the next marker from a place on; a match without a group is none.
        """
        doubts, self._doubts = self._doubts or [], None
        self.stands = False
        is_blank = not any(doubt.text.strip() for doubt in doubts if not doubt.is_marker)
        for is_marker, run in groupby(doubts, key=lambda doubt: doubt.is_marker):
            text = "".join(doubt.text for doubt in run)
            if is_marker or is_blank:
                self._pass(len(text), "markup")
            else:
                self._show_between(text, find_marker)

    def _show_between(
        self, text: str, find_marker: Callable[[str, int], re.Match[str] | None]
    ) -> None:
        at = 0
        while (match := find_marker(text, at)) is not None and match.lastindex is not None:
            self.show(text[at : match.start()], "content")
            self._pass(match.end() - match.start(), "markup")
            at = match.end()
        self.show(text[at:], "content")
