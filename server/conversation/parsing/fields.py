"""Reads bodies that are fields between markers: a name, then keys and values, or a header."""

from __future__ import annotations

import re

from server.conversation.parsing.format import Field
from server.conversation.parsing.json_calls import NAME
from server.conversation.parsing.output import SENTINELS, Output
from server.conversation.parsing.values import ToolTypes, quoted, text_to_json

_SENTINEL = re.compile(f"[{SENTINELS}]")


class FieldReader:
    """Takes what the fields of a reply say of its calls.

    Args:
        types: what the schemas of the request's tools say of arguments.

    Attributes:
        value: what was read of the value that is read.
    """

    def __init__(self, types: ToolTypes, output: Output) -> None:
        self.value: list[str] = []
        self._types = types
        self._output = output
        self._key = ""

    def take(self, state: Field, raw: str, to: str) -> str | None:
        """Take what a field says; returns the state behind it, None for a call that is none."""
        output = self._output
        if state.role == "header":
            for pattern, target in state.routes:
                if (match := re.search(pattern, raw)) is not None:
                    output.name = match.groupdict().get("name", "")
                    output.take(raw, is_marker=True)
                    return target
            return None
        value = _SENTINEL.sub("", raw).strip()
        if state.role == "name":
            if not NAME.fullmatch(value):
                return None
            output.name = value
        elif state.role == "key":
            self._key, self.value = value, []
        output.take(raw, "markup" if state.role == "ignored" else "tool")
        return to

    def add_argument(self, state: Field) -> None:
        """Give out an argument whose value was written as text."""
        value, self.value = _SENTINEL.sub("", "".join(self.value)), []
        if state.trims_line:
            value = value.removeprefix("\n").removesuffix("\n")
        types = self._types.get(self._output.name or "", {}).get(self._key)
        self._output.add_argument(quoted(self._key), text_to_json(value, types))
