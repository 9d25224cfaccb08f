"""Pieces of llguidance's Lark syntax."""

from __future__ import annotations

import re
from collections.abc import Iterable
from json import dumps
from typing import Any

import orjson
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

from server.errors import bad_request
from server.structured.subschemas import with_options

FREE_TEXT = r"/(.|\n)*/"
"""Any text."""
_UNKEPT = re.compile(r"[\w-]\[[^\]\"/\n]*\b(temperature)\s*=")
"""Options of rules that need more than masks."""
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
"""An escape of GBNF, with the number of a character where it has one."""


def literal(text: str) -> str:
    """A text as Lark writes it."""
    # The lexer takes no control character as it is, and of those JSON escapes all but one.
    return dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def choice(texts: Iterable[str]) -> str:
    """A grammar of one of some texts, as one terminal, which costs much less than rules."""
    return "start: CHOICE\nCHOICE: " + " | ".join(map(literal, texts))


def regex(pattern: str, param: str) -> str:
    """A regular expression as Lark writes it; raises `ApiError` for an escape of nothing."""
    # llguidance would leave it out.
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        words = "is refused: a backslash at the end escapes nothing"
        raise bad_request(param, f"{param} {words}", "grammar_refused")
    grammars = orjson.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
    lark: str = grammars[0]["lark_grammar"]
    return lark.removeprefix("start: ")


def lark_of(text: str, param: str) -> str:
    """A grammar in Lark, of one in Lark or GBNF.

    Raises:
        ApiError: it is no GBNF, or asks for what masks cannot give.
    """
    try:
        lark = text if is_lark_syntax(text) else gbnf_to_lark(_ESCAPE.sub(_plainer, text))
    except Exception as error:  # the converter fails in many ways
        raise bad_request(param, f"{param} is no GBNF: {error}", "grammar_refused") from None
    if (found := _UNKEPT.search(lark)) is not None:
        raise bad_request(
            param, f"{param}: the option {found[1]} of a rule has no effect here: leave it out"
        )
    return lark


def _plainer(escape: re.Match[str]) -> str:
    """An escape of GBNF that the converter keeps: it breaks those of Unicode and of brackets."""
    digits = escape[1] or escape[2]
    code = int(digits, 16) if digits else ord(escape[0][1])
    if 0xD800 <= code < 0xE000 or (not digits and escape[0][1] not in "[]"):
        return escape[0]
    if code < 0x80:  # it may be one that means something where it stands
        return f"\\x{code:02x}"
    return chr(code)


def json_value(schema: dict[str, Any] | bool, whitespace: str, param: str) -> str:
    """A JSON schema within a rule; arguments and errors are those of `with_options`."""
    return "%json " + orjson.dumps(with_options(schema, whitespace, param)).decode()
