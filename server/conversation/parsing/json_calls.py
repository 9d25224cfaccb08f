"""Reads bodies that are JSON: objects with a name and arguments, or arguments alone.

Arguments are given out as they were written, while they are written.
"""

from __future__ import annotations

import re

import orjson

from server.conversation.parsing.body import MAX_KEY, WAIT, PhasedReader, Status, skip_space
from server.conversation.parsing.format import JsonCalls
from server.conversation.parsing.json_scan import JsonScan
from server.conversation.parsing.output import SENTINELS, Output

NAME = re.compile(r"[\w.:/-]{1,256}")
_STRING = re.compile(rf'"(?:[^"\\{SENTINELS}]|\\.)*"', re.DOTALL)
_HEAD = re.compile(
    r'"([\w.-]+)"[ \t\r\n]*:[ \t\r\n]*"([\w.:/-]{1,256})"[ \t\r\n]*,'
    r'[ \t\r\n]*"([\w.-]+)"[ \t\r\n]*:[ \t\r\n]*(?=\{)'
)
"""What an object most often begins with, up to its arguments: their reading step by step takes ten
times as long."""
_NEXT = re.compile(r"[ \t\r\n]{0,64}+(?:[,;][ \t\r\n]{0,64}+(?:(?=\{)|(\Z))|(?=[\]{])|(\Z))")
"""What may come between objects, or after the last within a list."""


class JsonArgumentsReader:
    """Reads the arguments of a call whose name is known: one JSON object.

    Attributes:
        status: whether the body goes on, has ended, or is none.
    """

    def __init__(self, output: Output) -> None:
        self.status: Status = "reading"
        self._output = output
        self._scan: JsonScan | None = None

    def read(self, text: str, at: int) -> int:
        """Go on from a place; returns how far the text was read."""
        if self._scan is None:
            at = skip_space(text, at, self._output)
            if at == len(text):
                return at
            if text[at] != "{":
                return self._read_none(text, at)
            self._scan = JsonScan()
            self._output.accept()
        end = self._scan.scan(text, at)
        self._output.add_arguments(text[at:end])
        self._output.take(text[at:end], "tool")
        if self._scan.is_done or self._scan.is_cut:
            self._output.end_call()
            self.status = "done"
        return end

    @property
    def arguments(self) -> JsonScan | None:
        """The arguments that are given out as they are written, where the text ends in some."""
        return self._scan

    def _read_none(self, text: str, at: int) -> int:
        """Read a call without arguments, whose closing marker comes at once."""
        if text[at] != "<" and not "\ud800" <= text[at] <= "\udfff":
            self.status = "broken"
            return at
        self._output.close_arguments()
        self.status = "done"
        return at


class JsonCallsReader(PhasedReader):
    """Reads calls as JSON objects, alone or in a list."""

    def __init__(self, state: JsonCalls, output: Output) -> None:
        super().__init__(output, self._between)
        self._state = state
        self._num_calls = 0
        self._has_begun = False
        self._begin_object()

    def _begin_object(self) -> None:
        self._depth = 0
        self._key = ""
        self._scan: JsonScan | None = None
        self._is_arguments = False
        self._arguments: list[str] = []
        self._has_arguments = False

    @property
    def is_in_head(self) -> bool:
        """Whether the text ends in an object that is no call yet, and may become one."""
        return self._has_begun and self._output.is_uncertain

    @property
    def arguments(self) -> JsonScan | None:
        """The arguments that are given out as they are written, where the text ends in some."""
        return self._scan if self._is_arguments and self._output.is_certain else None

    def _behind(self, text: str, at: int) -> int:
        """Read what comes right after an object."""
        match = _NEXT.match(text, at)
        if match is None:
            self.status = "done"
            return at
        if match.lastindex:
            return WAIT
        self._output.take(match.group())
        self._phase, self._reads_space = self._between, False
        return match.end()

    def _between(self, text: str, at: int) -> int:
        """Read what is before and between objects, and the end of their list."""
        char = text[at]
        if char == "[" and not self._num_calls:
            return self._pass(text, at, self._between)
        if char == "{":
            self._output.begin_call()
            self._begin_object()
            self._has_begun = True
            return self._pass(text, at, self._read_key)
        if char == "]":
            at = self._pass(text, at, self._between)
        self.status = "done" if self._num_calls else "broken"
        return at

    def _break(self, at: int) -> int:
        """Give up the object, or only what is after the arguments of a complete call."""
        if self._output.is_certain:
            self._output.end_call()
            self.status = "done"
        else:
            self.status = "broken"
        return at

    def _read_key(self, text: str, at: int) -> int:
        if text[at] == "}":
            return self._end_object(text, at)
        if not self._key and (head := _HEAD.match(text, at)) is not None and self._take(head):
            return head.end()
        found = self._string(text, at)
        if found is None:
            return WAIT if self.status == "reading" else at
        end, self._key = found
        if self._state.name_is_key and self._output.name is None:
            self._take_quoted(text[at:end])
            self._output.name = self._key
        else:
            self._output.take(text[at:end])
        self._phase = self._read_colon
        return end

    def _take_quoted(self, text: str) -> None:
        """Take a name and its quotation marks."""
        self._output.take('"')
        self._output.take(text[1:-1], "tool")
        self._output.take('"')

    def _take(self, head: re.Match[str]) -> bool:
        """Take the head of a call up to its arguments, if it is one."""
        state, output, text = self._state, self._output, head.string
        if head[1] not in state.name_keys or head[3] not in state.argument_keys:
            return False
        output.name = head[2]
        output.take(text[head.start() : head.start(2)])
        output.take(head[2], "tool")
        output.take(text[head.end(2) : head.end()])
        output.accept()
        self._is_arguments = self._has_arguments = True
        self._scan = JsonScan()
        self._phase, self._reads_space = self._read_value, True
        return True

    def _string(self, text: str, at: int) -> tuple[int, str] | None:
        """The end and the value of a string; None where there is none, or none yet."""
        match = _STRING.match(text, at)
        num_chars = (len(text) if match is None else match.end() - 1) - at - 1
        if text[at] != '"' or num_chars > MAX_KEY:
            self._break(at)
            return None
        if match is None:
            return None
        try:
            value = orjson.loads(match.group())
        except orjson.JSONDecodeError:
            self._break(at)
            return None
        return match.end(), str(value)

    def _read_colon(self, text: str, at: int) -> int:
        if text[at] != ":":
            return self._break(at)
        return self._pass(text, at, self._begin_value)

    def _begin_value(self, text: str, at: int) -> int:
        state = self._state
        if self._key == "function" and text[at] == "{":
            self._depth += 1
            return self._pass(text, at, self._read_key)
        if self._key in state.name_keys and self._output.name is None:
            return self._read_name(text, at)
        is_value = self._key == self._output.name if state.name_is_key else False
        self._is_arguments = not self._has_arguments and (
            is_value or self._key in state.argument_keys
        )
        if self._is_arguments:
            if text[at] not in '{"n':
                return self._break(at)
            self._has_arguments = True
            if text[at] == "{" and self._output.name is not None:
                self._output.accept()
        self._scan = JsonScan()
        self._phase, self._reads_space = self._read_value, True
        return at

    def _read_name(self, text: str, at: int) -> int:
        found = self._string(text, at)
        if found is None:
            return WAIT if self.status == "reading" else at
        end, name = found
        if not NAME.fullmatch(name):
            return self._break(at)
        self._output.name = name
        self._take_quoted(text[at:end])
        self._phase = self._end_value
        return end

    def _read_value(self, text: str, at: int) -> int:
        scan = self._scan
        assert scan is not None
        end = scan.scan(text, at)
        if self._is_arguments:
            self._output.take(text[at:end], "tool")
            if self._output.is_certain:
                self._output.add_arguments(text[at:end])
            else:
                self._arguments.append(text[at:end])
        else:
            self._output.take(text[at:end])
        if scan.is_cut:
            return self._break(end)
        if not scan.is_done:
            return WAIT if end == at else end
        self._scan = None
        self._phase, self._reads_space = self._end_value, False
        return end

    def _end_value(self, text: str, at: int) -> int:
        if text[at] == ",":
            return self._pass(text, at, self._read_key)
        return self._end_object(text, at) if text[at] == "}" else self._break(at)

    def _end_object(self, text: str, at: int) -> int:
        if self._depth:
            self._depth -= 1
            return self._pass(text, at, self._end_value)
        if not self._output.is_certain and not self._stand_late():
            return self._break(at)
        at = self._pass(text, at, self._behind)
        self._reads_space = True
        self._output.end_call()
        self._num_calls += 1
        return at

    def _stand_late(self) -> bool:
        """Accept a call whose arguments did not follow its name; returns whether it is one."""
        arguments = "".join(self._arguments)
        if arguments[:1] == '"':
            try:
                arguments = orjson.loads(arguments)
            except orjson.JSONDecodeError:
                return False
        elif arguments in ("", "null"):
            if not arguments and self._state.needs_arguments:
                return False
            arguments = "{}"
        if self._output.name is None or arguments[:1] != "{":
            return False
        self._output.accept()
        self._output.add_arguments(arguments)
        return True
