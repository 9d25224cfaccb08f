"""Stop strings: the first to be completed wins, and text that may begin one is held back.

All stop strings of a request are matched at once by an automaton (Aho and Corasick, Efficient
string matching: an aid to bibliographic search, 1975). Its nodes are the prefixes of the stop
strings; after each character it is at the longest prefix that the text ends in. Each character
takes it at most one node deeper and each other move takes it up, so the time is linear in the
text, whatever the stop strings are.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

_NO_CHAR = "\ud800"
"""Half of a surrogate pair, which no text holds."""


class Match(NamedTuple):
    """Which stop string was found, and where in the text."""

    start: int
    end: int
    stop: str


class StopStrings:
    """The automaton of a request's stop strings, shared by all of its choices.

    A node is a number; 0 is the empty prefix. Nodes are numbered as stop strings add them, so that
    most nodes are followed by their child, and only other children need a table. Stop strings of
    65,536 characters take about a megabyte and a tenth of a second to build.

    Attributes:
        first: the nodes of the stop strings' first characters.
        ends: by node, the number of the longest stop string that the node ends in; the first has
            number 1, and 0 is none.
        held: by node, the length of its longest end that begins a stop string without being one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        chars = [_NO_CHAR]
        self._next_chars: Sequence[str] = chars  # by node: the character that leads to the next
        self._branches: dict[tuple[int, str], int] = {}  # to children that are not the next node
        self._children: dict[int, list[tuple[str, int]]] = {}  # the same, by node
        self._fallbacks = array("i", [0])  # by node: the longest shorter prefix that it ends in
        self.ends = array("i", [0])
        self.held = array("i", [0])
        self._stops = stops
        for number, stop in enumerate(stops, 1):
            node = 0
            for char in stop:
                node = self._child(node, char) or self._append(node, char, chars)
            self.ends[node] = number
        self._next_chars = "".join(chars)  # a string takes a fraction of the list's memory
        self.first = dict(self._children_of(0))
        self._link()

    def _child(self, node: int, char: str) -> int:
        """The node of this one's prefix and `char`; 0 where there is none."""
        if self._next_chars[node] == char:
            return node + 1
        return self._branches.get((node, char), 0)

    def _append(self, parent: int, char: str, chars: list[str]) -> int:
        node = len(chars)
        if node == parent + 1:
            chars[parent] = char
        else:
            self._branches[parent, char] = node
            self._children.setdefault(parent, []).append((char, node))
        chars.append(_NO_CHAR)
        for column in (self._fallbacks, self.ends, self.held):
            column.append(0)
        return node

    def _link(self) -> None:
        """Set what nodes have from shorter prefixes, level by level."""
        level, depth = list(self._children_of(0)), 1
        fallbacks = [0] * len(level)
        while level:
            deeper: list[tuple[str, int]] = []
            next_fallbacks: list[int] = []
            for (_, node), fallback in zip(level, fallbacks, strict=True):
                self._fallbacks[node] = fallback
                self.ends[node] = self.ends[node] or self.ends[fallback]
                children = self._children_of(node)
                self.held[node] = depth if children else self.held[fallback]
                deeper += children
                next_fallbacks += [self.advance(fallback, char) for char, _ in children]
            level, fallbacks, depth = deeper, next_fallbacks, depth + 1

    def _children_of(self, node: int) -> list[tuple[str, int]]:
        char, others = self._next_chars[node], self._children.get(node, [])
        return others if char == _NO_CHAR else [(char, node + 1), *others]

    def numbered(self, number: int) -> str:
        """The stop string of a number in `ends`."""
        return self._stops[number - 1]

    def advance(self, node: int, char: str) -> int:
        """The node after one more character."""
        while not (child := self._child(node, char)):
            if not node:
                return 0
            node = self._fallbacks[node]
        return child


class StopMatcher:
    """Follows a growing text and finds the first stop string in it.

    What is found depends on the text alone, not on how it was cut into tokens or chunks: the stop
    string whose end comes first, of those that end together the longest.
    """

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._node = 0
        self._length = 0

    @property
    def held(self) -> int:
        """Length of the longest end of the text that begins a stop string without being one."""
        return self._stops.held[self._node]

    def feed(self, text: str, ignored: int = 0) -> Match | None:
        """Go on with the text; return the first stop string that it completes.

        Args:
            ignored: stop strings count only where they end after so many characters of the whole
                text.
        """
        node, stops = self._node, self._stops
        advance, first, ends = stops.advance, stops.first, stops.ends
        for end, char in enumerate(text, self._length + 1):
            node = advance(node, char) if node else first.get(char, 0)
            if ends[node] and end > ignored:
                stop = stops.numbered(ends[node])
                return Match(end - len(stop), end, stop)
        self._node, self._length = node, self._length + len(text)
        return None
