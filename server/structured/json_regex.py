"""Regular expressions of a text, made into those of that text as a JSON string has it.

A character that JSON escapes is matched as one escape of it: the short one where there is one
(RFC 8259, section 7). The expressions are those that both Python's parser and llguidance's read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, ClassVar

SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_LONG = [chr(code) for code in range(0x20) if chr(code) not in SHORT]
_PLAIN = r"&&[^\x22\x5c\x00-\x1f]"
"""What of a class needs no escape."""
_HEX_CONTROLS = r"\x5cu00(?:0[0-7bBeEfF]|1[0-9a-fA-F])"
_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}
_FLAGS = {"i": re.IGNORECASE, "s": re.DOTALL, "u": re.UNICODE}

Nodes = Sequence[tuple[Any, Any]]


class NotExpressibleError(ValueError):
    """What cannot be said of the text within a JSON string, in words."""


def escaped(text: str) -> str:
    """A text as JSON has it between quotes."""
    return "".join(f"\\{SHORT[c]}" if c in SHORT else _hex(c) if c < " " else c for c in text)


def _hex(char: str) -> str:
    return f"\\u{ord(char):04x}"


def without_anchors(pattern: str) -> str:
    """A whole expression without the anchors at its ends, which mean nothing there."""
    return re.sub(r"(?<!\\)\$$", "", pattern.removeprefix("^"))


class JsonRegex:
    """An expression as it is within a JSON string; raises `NotExpressibleError`.

    Attributes:
        pattern: the expression; it has no slash.
        has_escapes: some of its classes have characters that are escaped.
    """

    def __init__(self, pattern: str, flags: str = "") -> None:
        self.has_escapes = False
        if unknown := set(flags) - _FLAGS.keys():
            raise NotExpressibleError(f"the flag {min(unknown)} of a regular expression")
        bits = 0
        for flag in flags:
            bits |= _FLAGS[flag]
        try:
            nodes = parser.parse(pattern, bits)
        except (re.error, OverflowError, RecursionError) as error:
            words = f"the regular expression {pattern[:64]!r} ({error})"
            raise NotExpressibleError(words) from None
        self._folds = bool(nodes.state.flags & re.IGNORECASE)
        self._dot_is_all = bool(nodes.state.flags & re.DOTALL)
        self.pattern = self._all(nodes)

    def _all(self, nodes: Nodes) -> str:
        return "".join(self._one(op, value) for op, value in nodes)

    def _one(self, op: Any, value: Any) -> str:
        write = self._WRITERS.get(op)
        if write is None:
            raise NotExpressibleError(
                f"{str(op).lower().replace('_', ' ')} of a regular expression"
            )
        return write(self, value)

    def _literal(self, code: int) -> str:
        char = chr(code)
        if char in SHORT or char < " ":
            return "".join(_exact(each) for each in escaped(char))
        return f"(?i:{_exact(char)})" if self._folds and char.isalpha() else _exact(char)

    def _any(self, _: None) -> str:
        return self._class([] if self._dot_is_all else [(codes.LITERAL, ord("\n"))], negated=True)

    def _not_literal(self, code: int) -> str:
        return self._class([(codes.LITERAL, code)], negated=True)

    def _in(self, items: Nodes) -> str:
        negated = bool(items) and items[0][0] is codes.NEGATE
        return self._class(items[1:] if negated else items, negated=negated)

    def _class(self, items: Nodes, *, negated: bool) -> str:
        """A class: those of its characters that are plain, or an escape of another."""
        body = "".join(_class_item(op, value) for op, value in items)
        whole = f"[{'^' if negated else ''}{body}]" if body else r"[\x00-\x{10ffff}]"
        finds = re.compile(_for_python(items, negated), re.IGNORECASE if self._folds else 0)
        plain = f"[{whole}{_PLAIN}]"
        parts = [f"(?i:{plain})" if self._folds else plain]
        short = [mark for char, mark in SHORT.items() if finds.fullmatch(char)]
        long = [char for char in _LONG if finds.fullmatch(char)]
        if short:
            parts.append(rf"\x5c[{''.join(_exact(mark) for mark in short)}]")
        if len(long) == len(_LONG):
            parts.append(_HEX_CONTROLS)
        else:
            parts += ["".join(_exact(each) for each in _hex(char)) for char in long]
        self.has_escapes |= len(parts) > 1
        return f"(?:{'|'.join(parts)})"

    def _branch(self, value: tuple[None, list[Nodes]]) -> str:
        return f"(?:{'|'.join(self._all(nodes) for nodes in value[1])})"

    def _group(self, value: tuple[Any, int, int, Nodes]) -> str:
        _, added, removed, nodes = value
        if added or removed:
            raise NotExpressibleError("flags within a regular expression")
        return f"(?:{self._all(nodes)})"

    def _repeat(self, value: tuple[int, Any, Nodes]) -> str:
        least, most, nodes = value
        upto = "" if most is codes.MAXREPEAT else str(most)
        return f"(?:{self._all(nodes)}){{{least},{upto}}}"

    _WRITERS: ClassVar[dict[Any, Callable[[JsonRegex, Any], str]]] = {
        codes.LITERAL: _literal,
        codes.NOT_LITERAL: _not_literal,
        codes.ANY: _any,
        codes.IN: _in,
        codes.BRANCH: _branch,
        codes.SUBPATTERN: _group,
        codes.MAX_REPEAT: _repeat,
        codes.MIN_REPEAT: _repeat,
    }


def _exact(char: str) -> str:
    """One character of an expression, whatever it means there."""
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


def _class_item(op: Any, value: Any) -> str:
    if op is codes.LITERAL:
        return _exact(chr(value))
    if op is codes.RANGE:
        return f"{_exact(chr(value[0]))}-{_exact(chr(value[1]))}"
    return _CATEGORIES[value]


def _for_python(items: Nodes, negated: bool) -> str:
    """The same class for Python's matcher, which says what of it is escaped."""
    parts = []
    for op, value in items:
        if op is codes.CATEGORY:
            parts.append(_CATEGORIES[value])
        else:
            ends = value if op is codes.RANGE else (value,)
            parts.append("-".join(f"\\U{end:08x}" for end in ends))
    if not parts:
        return r"[\s\S]"
    return f"[{'^' if negated else ''}{''.join(parts)}]"
