"""Custom tools, which are called with a text: to templates and models they are functions with one
argument, whose value is that text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from server.conversation.spec import InputGrammar, ToolSpec
from server.endpoints.responses.tools_schema import CustomTool

ARGUMENT = "input"
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPACE = " \t\r\n"
_NO_ARGUMENTS = "{}"
_HEX_CHARS = 4
_FIRST_HIGH, _FIRST_LOW, _LAST_LOW = 0xD800, 0xDC00, 0xDFFF


def as_arguments(text: str) -> Mapping[str, str]:
    """The text that a custom tool is called with, as the arguments of a function."""
    return {ARGUMENT: text}


def custom_tool(tool: CustomTool, place: str) -> ToolSpec:
    """A custom tool as a function, whose fields are at `place` in the body."""
    described = tool.format is not None and tool.format.type == "grammar"
    grammar = None
    if described:
        assert tool.format is not None
        syntax, definition = tool.format.syntax or "lark", tool.format.definition or ""
        grammar = InputGrammar(ARGUMENT, syntax, definition, f"{place}.format.definition")
    return ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters={
            "type": "object",
            "properties": {ARGUMENT: {"type": "string"}},
            "required": [ARGUMENT],
            "additionalProperties": False,
        },
        strict=described,
        place=place,
        schema_place=place,
        input_grammar=grammar,
    )


class InputReader:
    """Reads the text out of arguments as they come: `{"input": "..."}`.

    Arguments of any other shape are the text themselves, since a model that is held to no grammar
    may write what it likes.
    """

    def __init__(self) -> None:
        self._state: Literal["head", "text", "done", "other"] = "head"
        self._head = ""
        self._escape = ""
        self._high = 0  # the first half of a pair of \u escapes

    def feed(self, text: str) -> str:
        """More of the text that these characters hold."""
        if self._state == "other":
            return text
        if self._state == "head":
            self._head += text
            if self._head.strip(_SPACE) == _NO_ARGUMENTS:
                return ""
            fits, text = _after_head(self._head)
            if not fits:
                self._state = "other"
                return self._head
            if not text:
                return ""
            self._state, text = "text", text[1:]
        return self._read(text) if self._state == "text" else ""

    def end(self) -> str:
        """The rest, once the arguments have ended."""
        if self._state != "head" or self._head.strip(_SPACE) in ("", "{", _NO_ARGUMENTS):
            return ""
        return self._head

    def _read(self, text: str) -> str:
        found = []
        for char in text:
            if self._escape:
                found.append(self._escaped(char))
            elif char == "\\":
                self._escape = char
            elif char == '"':
                self._state = "done"
                break
            else:
                found.append(char)
        return "".join(found)

    def _escaped(self, char: str) -> str:
        if self._escape == "\\" and char != "u":
            self._escape = ""
            return _ESCAPES.get(char, f"\\{char}")
        self._escape += char
        if len(self._escape) < 2 + _HEX_CHARS:
            return ""
        digits, self._escape = self._escape[2:], ""
        try:
            code = int(digits, 16)
        except ValueError:
            return f"\\u{digits}"
        high, self._high = self._high, 0
        if _FIRST_HIGH <= code < _FIRST_LOW:
            self._high = code
            return ""
        if _FIRST_LOW <= code <= _LAST_LOW:
            pair = bytes.fromhex(f"{high:04x}{code:04x}").decode("utf-16-be", "replace")
            return pair if high else "\ufffd"
        return chr(code)


def _after_head(head: str) -> tuple[bool, str]:
    """Whether a text may begin `{"input": "`, and what is there from that last quote on."""
    at = 0
    for mark in ("{", f'"{ARGUMENT}"', ":", '"'):
        rest = head[at:].lstrip(_SPACE)
        if not rest.startswith(mark):
            return mark.startswith(rest), ""
        at = len(head) - len(rest) + len(mark)
    return True, head[at - 1 :]
