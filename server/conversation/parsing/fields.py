"""Reads bodies that are fields between markers: a name, then keys and values, or a header."""

from __future__ import annotations

import re

from server.conversation.parsing.format import Field
from server.conversation.parsing.json_calls import NAME
from server.conversation.parsing.output import Output
from server.conversation.parsing.values import (
    ToolTypes,
    Types,
    quoted,
    tagged_to_json,
    text_to_json,
    without_sentinels,
)


class FieldReader:
    """Takes what the fields of a reply say of its calls.

    Args:
        types: what the schemas of the request's tools say of arguments.

    Attributes:
        value: what was read of the value that is read.
        output: where what they say goes.
    """

    def __init__(self, types: ToolTypes, output: Output) -> None:
        self.value: list[str] = []
        self._types = types
        self.output = output
        self._key = ""

    def take(self, state: Field, raw: str, to: str) -> str | None:
        """Take what a field says; returns the state after it, None for a call that is none."""
        output = self.output
        if state.role == "header":
            for pattern, target in state.routes:
                if (match := re.search(pattern, raw)) is not None:
                    output.name = match.groupdict().get("name", "")
                    output.take(raw, is_marker=True)
                    return target
            return None
        value = without_sentinels(raw).strip()
        if state.role == "closing":
            return self._close(state, raw, to)
        if state.role == "kind":
            output.take(raw)
            return next((way for pattern, way in state.routes if re.fullmatch(pattern, value)), to)
        if state.role == "name":
            return to if self._take_name(state, raw, value) else None
        if state.role == "key":
            self._key, self.value = value, []
        output.take(raw, "markup" if state.role == "ignored" else "tool")
        return to

    def _take_name(self, state: Field, raw: str, value: str) -> bool:
        """Take a call's name and what may be around it; returns whether it is one."""
        output = self.output
        match = re.fullmatch(state.pattern, value) if state.pattern else None
        name = value if match is None else match["name"]
        if not NAME.fullmatch(name):
            return False
        output.name = name
        at = max(raw.find(name), 0)  # a token of no meaning may be within
        if not raw.startswith(name, at):
            name = raw
        output.take(raw[:at])
        output.take(raw[at : at + len(name)], "tool")
        output.take(raw[at + len(name) :])
        return True

    def _close(self, state: Field, raw: str, to: str) -> str:
        """Take the key that ends a value; that of a part of it is a piece of the value."""
        self.output.take(raw)
        if raw == self._key:
            self.add_argument(state)
            return to
        self.value.append(f"{state.tag}</{raw}>")
        _, value_state = state.routes[0]
        return value_state

    def add_argument(self, state: Field) -> None:
        """Give out an argument whose value was written as text."""
        text, self.value = "".join(self.value), []
        types = self.types_of(self._key)
        if state.tag and state.tag in text:
            value = tagged_to_json(text, state.tag)
        else:
            text = without_sentinels(text)
            if state.trims_line:
                text = text.removeprefix("\n").removesuffix("\n")
            value = quoted(text) if state.is_text else text_to_json(text, types)
        self.output.add_argument(quoted(self._key), value)

    def types_of(self, key: str) -> Types | None:
        """The types of an argument of the call that is read; None where nothing says them."""
        return self._types.get(self.output.name or "", {}).get(key)
