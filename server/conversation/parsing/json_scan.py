"""Finds where a JSON value ends in a growing text, without reading what it says."""

from __future__ import annotations

import re

from server.conversation.parsing.output import SENTINELS

_QUOTED = re.compile(rf'(?:[^"\\{SENTINELS}]+|\\.)*', re.DOTALL)
_STRUCTURE = re.compile(rf'["{{}}\[\]<{SENTINELS}]')
_SCALAR = re.compile(rf"[^\s,}}\]<{SENTINELS}]*")


class JsonScan:
    """Follows one JSON value. Brackets are counted and not compared.

    Attributes:
        is_done: the value has ended.
        is_cut: it has something that no JSON holds: a special token, or outside of strings
            the beginning of a tag.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.is_cut = False
        self._depth = 0
        self._is_quoted = False
        self._is_scalar: bool | None = None

    def scan(self, text: str, at: int) -> int:
        """Go on from a place; returns where the value ends, or as far as it is certain."""
        if self._is_scalar is None:
            self._is_scalar = text[at] not in '{["'
        if self._is_scalar:
            return self._scan_scalar(text, at)
        num_chars = len(text)
        while at < num_chars:
            at = self._quoted(text, at) if self._is_quoted else self._unquoted(text, at)
            if self.is_done or self.is_cut or (at < num_chars and text[at] == "\\"):
                break  # what follows a backslash at the end is not known yet
        return at

    def pass_by(self, text: str) -> bool:
        """Go on with all of a text if the value goes on after it; returns whether it does.

        Args:
            text: it has no special token.
        """
        if self._is_quoted:
            if '"' not in text and "\\" not in text:
                return True
        elif self._is_scalar is False and _STRUCTURE.search(text) is None:
            return True
        before = self._depth, self._is_quoted
        if self.scan(text, 0) == len(text) and not self.is_done:
            return True
        self._depth, self._is_quoted = before
        self.is_done = self.is_cut = False
        return False

    def _scan_scalar(self, text: str, at: int) -> int:
        match = _SCALAR.match(text, at)
        end = match.end() if match else at
        self.is_done = end < len(text)
        return end

    def _quoted(self, text: str, at: int) -> int:
        """Go on inside a string."""
        match = _QUOTED.match(text, at)
        at = match.end() if match else at
        if at == len(text) or text[at] == "\\":
            return at
        if text[at] != '"':
            self.is_cut = True
            return at
        self._is_quoted = False
        self.is_done = self._depth == 0
        return at + 1

    def _unquoted(self, text: str, at: int) -> int:
        """Go on to the next character that means something outside of strings."""
        match = _STRUCTURE.search(text, at)
        if match is None:
            return len(text)
        char = match.group()
        if char == '"':
            self._is_quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.is_done = self._depth == 0
        else:
            self.is_cut = True
            return match.start()
        return match.end()
