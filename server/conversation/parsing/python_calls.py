"""Reads bodies that are calls in Python: `[look(at="it", n=2), stop()]`.

Each argument is made into JSON when it is complete.
"""

from __future__ import annotations

import re

from server.conversation.parsing.body import MAX_KEY, WAIT, PhasedReader
from server.conversation.parsing.output import SENTINELS, Output
from server.conversation.parsing.values import python_to_json, quoted

_NAME = re.compile(r"([A-Za-z_][\w.-]*)[ \t\r\n]*(\(|\Z)")
_KEY = re.compile(r"([A-Za-z_]\w*)[ \t\r\n]*(?:=(?!=|\Z)|(\Z|=\Z))")
_ARGUMENT = re.compile(
    rf"([A-Za-z_]\w{{0,{MAX_KEY - 2}}})="
    rf"""('[^'\\{SENTINELS}]*'|"[^"\\{SENTINELS}]*"|[\w.+-]+)(?:,[ ]?|(?=\)))"""
)
"""Most arguments, with what shows that they end: reading them step by step takes three times as
long."""
_PLAIN = re.compile(rf"""[^\[\](){{}},"'{SENTINELS}]+""")
_QUOTED = {
    '"': re.compile(rf'(?:[^"\\{SENTINELS}]+|\\.)*', re.DOTALL),
    "'": re.compile(rf"(?:[^'\\{SENTINELS}]+|\\.)*", re.DOTALL),
    '"""': re.compile(rf'(?:[^"\\{SENTINELS}]+|\\.|"{{1,2}}(?=[^"]))*', re.DOTALL),
    "'''": re.compile(rf"(?:[^'\\{SENTINELS}]+|\\.|'{{1,2}}(?=[^']))*", re.DOTALL),
}


class PythonScan:
    """Follows one value up to the comma or bracket after it.

    Attributes:
        is_done: the value has ended.
        is_cut: it has a special token.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.is_cut = False
        self._depth = 0
        self._quote = ""

    def scan(self, text: str, at: int) -> int:
        """Go on from a place; returns where the value ends, or as far as it is certain."""
        while at < len(text) and not (self.is_done or self.is_cut):
            end = self._quoted(text, at) if self._quote else self._unquoted(text, at)
            if end == WAIT:
                return at
            at = end
        return at

    def pass_by(self, text: str) -> bool:
        """Go on with all of a text if the value goes on after it; returns whether it does.

        Args:
            text: it has no special token.
        """
        if self._quote and self._quote[0] not in text and "\\" not in text:
            return True
        before = self._depth, self._quote
        if self.scan(text, 0) == len(text) and not (self.is_done or self.is_cut):
            return True
        self._depth, self._quote = before
        self.is_done = self.is_cut = False
        return False

    def _unquoted(self, text: str, at: int) -> int:
        match = _PLAIN.match(text, at)
        if match is not None:
            return match.end()
        char = text[at]
        if char in "\"'":
            return self._open_quote(text, at, char)
        if char in ",)" and not self._depth:
            self.is_done = True
            return at
        if char in "[({":
            self._depth += 1
        elif char in "])}":
            self._depth -= 1
        elif char != ",":
            self.is_cut = True
            return at
        return at + 1

    def _open_quote(self, text: str, at: int, char: str) -> int:
        """Begin a string of one quote or of three; up to two at the end may be either."""
        if len(text) - at < 3 and text[at:] == char * (len(text) - at):
            return WAIT
        self._quote = char * 3 if text.startswith(char * 3, at) else char
        return at + len(self._quote)

    def _quoted(self, text: str, at: int) -> int:
        match = _QUOTED[self._quote].match(text, at)
        end = match.end() if match else at
        if text.startswith(self._quote, end):
            end += len(self._quote)
            self._quote = ""
            return end
        if end < len(text) and text[end] not in "\"'\\":
            self.is_cut = True
        return WAIT if end == at and not self.is_cut else end


class PythonCallsReader(PhasedReader):
    """Reads calls in a list.

    Attributes:
        value: what was read of the value that is read.
    """

    def __init__(self, output: Output) -> None:
        super().__init__(output, self._open)
        self._key = ""
        self._scan: PythonScan | None = None
        self._is_in_call = False
        self.value: list[str] = []

    @property
    def is_in_head(self) -> bool:
        """Whether the text ends in a call's name, in an argument's, or in the first argument."""
        return self._is_in_call if self._scan is None else not self._output.is_certain

    @property
    def scan(self) -> PythonScan | None:
        """The value that is read, where the text ends in one of a call that is certain."""
        return self._scan if self._output.is_certain else None

    def _open(self, text: str, at: int) -> int:
        if text[at] != "[":
            self.status = "broken"
            return at
        self._is_in_call = True
        return self._pass(text, at, self._read_name)

    def _read_name(self, text: str, at: int) -> int:
        match = _NAME.match(text, at)
        if match is None or match.end() - at > MAX_KEY:
            self.status = "broken"
            return at
        if not match.group(2):
            return WAIT
        self._output.begin_call()
        self._output.name = match.group(1)
        self._output.take(match.group(1), "tool")
        self._output.take(text[match.end(1) : match.end()])
        self._phase = self._read_key
        return match.end()

    def _read_key(self, text: str, at: int) -> int:
        if text[at] == ")":
            self._output.close_arguments()
            self._is_in_call = False
            return self._pass(text, at, self._between)
        if (whole := _ARGUMENT.match(text, at)) is not None:
            return self._take(whole)
        match = _KEY.match(text, at)
        if match is None or match.end() - at > MAX_KEY:
            self.status = "broken"
            return at
        if match.group(2) is not None:
            return WAIT
        self._key = match.group(1)
        self._output.take(match.group(1), "tool")
        self._output.take(text[match.end(1) : match.end()])
        self._scan, self.value = PythonScan(), []
        self._phase, self._reads_space = self._read_value, True
        return match.end()

    def _read_value(self, text: str, at: int) -> int:
        scan = self._scan
        assert scan is not None
        end = scan.scan(text, at)
        if scan.is_done:
            return self._end_argument(text, at, end)
        self.value.append(text[at:end])
        self._output.take(text[at:end], "tool")
        if scan.is_cut:
            self.status = "broken"
        return WAIT if end == at else end

    def _end_argument(self, text: str, at: int, end: int) -> int:
        """Take the end of a value, and give the argument out."""
        self._output.take(text[at:end], "tool")
        self._scan = None
        self._phase, self._reads_space = self._end_value, False
        self._add_argument(self._key, "".join(self.value) + text[at:end])
        return end

    def _take(self, whole: re.Match[str]) -> int:
        """Take a whole argument, and the comma after it."""
        text, output = whole.string, self._output
        key, value = whole.groups()
        output.take(key, "tool")
        output.take("=")
        output.take(value, "tool")
        self._phase = self._end_value
        self._add_argument(key, value)
        if self.status == "reading" and (end := whole.end()) > whole.end(2):
            output.take(text[whole.end(2) : end])
            self._phase = self._read_key
            return end
        return whole.end(2)

    def _add_argument(self, key: str, source: str) -> None:
        value = python_to_json(source)
        if value is None:
            self.status = "broken"
        else:
            self._output.add_argument(quoted(key), value)

    def _end_value(self, text: str, at: int) -> int:
        return self._pass(text, at, self._read_key) if text[at] == "," else self._read_key(text, at)

    def _between(self, text: str, at: int) -> int:
        """Read what is between calls and after the last."""
        if text[at] == ",":
            self._is_in_call = True
            return self._pass(text, at, self._read_name)
        if text[at] == "]":
            self._output.take(text[at])
            at += 1
        self.status = "done"
        return at
