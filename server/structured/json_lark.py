"""Lark grammars of a text, made into those of that text as a JSON string has it.

Literals and regular expressions are rewritten, and what a grammar imports is written out. A lexer
of such texts has to look past a backslash before it knows which token it reads, which llguidance's
does within one terminal alone: so a grammar without recursion becomes one terminal.
"""

from __future__ import annotations

import ast
import re
from json import dumps
from typing import NamedTuple

from server.structured.json_regex import JsonRegex, NotExpressibleError, escaped

_TOKEN = re.compile(
    r"""
    (?P<comment>(?://|\#)[^\n]*)
    | (?P<range>"(?:\\.|[^"\\])*"\s*\.\.\s*"(?:\\.|[^"\\])*")
    | "(?P<string>(?:\\.|[^"\\\n])*)"(?P<fold>i?)
    | /(?P<regex>(?:\\.|[^/\\\n])+)/(?P<flags>[a-z]*)
    | %import[ \t]+common[ \t]*\.[ \t]*(?P<one>\w+)(?:[ \t]*->[ \t]*(?P<as>\w+))?
    | %import[ \t]+common[ \t]*\((?P<several>[\w\s,]*)\)
    | (?P<statement>%\w+)
    | (?P<alias>->[ \t]*\w+)
    | (?P<count>\{[ \t]*\d[\d, \t]*\})
    | (?P<name>[?!]*_*[A-Za-z]\w*)
      (?P<defines>(?P<options>[\[{][^\]}\n]*[\]}]|\.-?\d+)?[ \t]*:)?
    | (?P<other>[<@].+?>?|.|\n)
    """,
    re.VERBOSE,
)
_COMMON = {
    "DIGIT": r"[0-9]",
    "HEXDIGIT": r"[a-fA-F0-9]",
    "INT": r"[0-9]+",
    "SIGNED_INT": r"[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    "SIGNED_FLOAT": r"[+-]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+)",
    "NUMBER": r"[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+)",
    "ESCAPED_STRING": r'"(?:[^"\\]|\\.)*"',
    "LCASE_LETTER": r"[a-z]",
    "UCASE_LETTER": r"[A-Z]",
    "LETTER": r"[A-Za-z]",
    "WORD": r"[A-Za-z]+",
    "CNAME": r"[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
}
"""What llguidance knows of `common`."""


class _Piece(NamedTuple):
    """A piece of a grammar: text as it is, or a name that is used or defined."""

    text: str
    name: str = ""
    defines: bool = False


class _Writer:
    """Reads one grammar, and writes it anew."""

    def __init__(self) -> None:
        self.pieces: list[_Piece] = []
        self.imports: dict[str, str] = {}
        self.uses: dict[str, set[str]] = {}
        self.has_escapes = False
        self.ignores = False
        self._rule = ""

    def read(self, match: re.Match[str]) -> None:
        found = match.groupdict()
        if found["comment"] is not None:
            return
        if found["string"] is not None:
            self._add(_literal(_decoded(match.group().rstrip("i")), folds=bool(found["fold"])))
        elif found["range"] is not None:
            first, last = (_decoded(f'"{end}"') for end in _ends(found["range"]))
            self._add(self._regex(f"[{re.escape(first)}-{re.escape(last)}]", ""))
        elif found["regex"] is not None:
            self._add(self._regex(found["regex"].replace(r"\/", "/"), found["flags"]))
        elif found["one"] is not None:
            self._import(found["one"], found["as"])
        elif found["several"] is not None:
            for name in found["several"].replace(",", " ").split():
                self._import(name, None)
        elif found["statement"] is not None:
            if found["statement"] != "%ignore":
                raise NotExpressibleError(found["statement"])
            self.ignores = True
            self._add("%ignore")
        elif found["name"] is not None:
            self._name(found["name"].lstrip("?!"), found["options"], bool(found["defines"]))
        elif found["count"] is not None:
            self._add(found["count"])
        elif found["alias"] is None:
            if found["other"] in "<@{}":
                raise NotExpressibleError(f"{found['other']} in a grammar")
            if len(found["other"]) > 1:
                raise NotExpressibleError(found["other"][:32])
            self._add(found["other"])

    def _add(self, text: str) -> None:
        self.pieces.append(_Piece(text))

    def _regex(self, pattern: str, flags: str) -> str:
        made = JsonRegex(pattern, flags)
        self.has_escapes |= made.has_escapes
        return f"/{made.pattern}/"

    def _import(self, name: str, alias: str | None) -> None:
        if name not in _COMMON:
            raise NotExpressibleError(f"%import common.{name}")
        self.imports[alias or name] = self._regex(_COMMON[name], "")

    def _name(self, name: str, options: str | None, defines: bool) -> None:
        if options:
            raise NotExpressibleError(f"{name}{options}")
        if defines:
            self._rule = name
            self.uses.setdefault(name, set())
        else:
            self.uses.setdefault(self._rule, set()).add(name)
        self.pieces.append(_Piece("", name, defines))

    def is_recursive(self) -> bool:
        """Whether some rule leads to itself."""
        open_rules: set[str] = set()
        done: set[str] = set()

        def visit(rule: str) -> bool:
            if rule in open_rules:
                return True
            if rule in done:
                return False
            open_rules.add(rule)
            found = any(visit(used) for used in self.uses.get(rule, ()))
            open_rules.discard(rule)
            done.add(rule)
            return found

        return any(visit(rule) for rule in list(self.uses))

    def written(self, *, as_terminal: bool) -> str:
        """The grammar; with `as_terminal` all rules are terminals of one."""
        names = {name: f"T_{name.upper()}_{i}" for i, name in enumerate(self.uses)}

        def own(name: str) -> str:
            return names.get(name, name) if as_terminal and name not in self.imports else name

        lines = [f"\n{name}: {pattern}\n" for name, pattern in self.imports.items()]
        lines += [
            piece.text or f"{own(piece.name)}{':' if piece.defines else ''}"
            for piece in self.pieces
        ]
        if as_terminal:
            lines.append(f"\nstart: {names['start']}\n")
        return "".join(lines)


def within_json(lark: str) -> str:
    """The grammar of JSON strings, without their quotes, whose text a grammar takes.

    Raises:
        NotExpressibleError: it cannot be said so.
    """
    writer = _Writer()
    for match in _TOKEN.finditer(lark):
        writer.read(match)
    if "start" not in writer.uses:
        raise NotExpressibleError("a grammar without the rule start")
    if not writer.ignores:
        try:
            is_recursive = writer.is_recursive()
        except RecursionError:
            is_recursive = True
        if not is_recursive:
            return writer.written(as_terminal=True)
    if writer.has_escapes:
        reason = "%ignore" if writer.ignores else "a rule that leads to itself"
        raise NotExpressibleError(f"{reason} beside classes of characters that JSON escapes")
    return writer.written(as_terminal=False)


def _ends(text: str) -> list[str]:
    return re.findall(r'"((?:\\.|[^"\\])*)"', text)


def _decoded(quoted: str) -> str:
    """The text of a literal of Lark, which are those of Python."""
    try:
        text = ast.literal_eval(quoted)
    except (SyntaxError, ValueError):
        raise NotExpressibleError(f"the literal {quoted[:64]}") from None
    assert isinstance(text, str)
    return text


def _literal(text: str, *, folds: bool) -> str:
    """A literal of the text as JSON has it, whose escapes keep their case."""
    if not folds:
        return dumps(escaped(text), ensure_ascii=False).replace("\x7f", "\\u007f")
    parts = re.findall(r'["\\\x00-\x1f]+|[^"\\\x00-\x1f]+', text)
    written = [
        _literal(part, folds=False) + ("" if part[0] < " " or part[0] in '"\\' else "i")
        for part in parts
    ]
    return f"({' '.join(written)})" if len(written) != 1 else written[0]
