"""Reads arguments as an object with bare words for keys, and quotes of its own around strings.

    {at:<|"|>it<|"|>,n:2,where:[{lat:1.5}]}

Each argument is made into JSON when it is complete.
"""

from __future__ import annotations

import re

import orjson

from server.conversation.parsing.body import MAX_KEY, WAIT, PhasedReader
from server.conversation.parsing.fields import FieldReader
from server.conversation.parsing.values import quoted, text_to_json, without_sentinels

_KEY = re.compile(r"([^\s{}\[\],:\"]+)[ \t\r\n]*(:|\Z)")
_JSON_STRING = r'"(?:[^"\\]|\\.)*"'
_CLOSED_STRING = re.compile(r'(?:[^"\\]|\\.)*(?:(")|\\?\Z)', re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null"}


class BareArgumentsReader(PhasedReader):
    """Reads the arguments of a call whose name is known.

    Args:
        quote: what is before and after a string.
        fields: knows the call and the types of its arguments.

    Attributes:
        is_in_head, arguments: as other readers have them; no text of a value flows.
    """

    is_in_head = False
    arguments = None

    def __init__(self, quote: str, fields: FieldReader) -> None:
        super().__init__(fields.output, self._open)
        self._fields = fields
        self._quote = quote
        self._stop = re.compile(rf'{re.escape(quote)}|[{{}}\[\],"]|(?:{_beginnings(quote)})\Z')
        self._key = ""
        self._value: list[str] = []
        self._depth = 0
        self._inside = ""  # the quote of the string that is read

    def _open(self, text: str, at: int) -> int:
        if text[at] != "{":
            self.status = "broken"
            return at
        self._output.accept()
        return self._pass(text, at, self._read_key)

    def _read_key(self, text: str, at: int) -> int:
        if text[at] == "}":
            self._output.close_arguments()
            self.status = "done"
            self._output.take(text[at])
            return at + 1
        if text.startswith(self._quote, at):
            at_key, end = self._quoted_key(text, at)
        else:
            match = _KEY.match(text, at)
            if match is None or match.end() - at > MAX_KEY:
                self.status = "broken"
                return at
            at_key, end = match[1], match.end() if match[2] else WAIT
        if end == WAIT or self.status == "broken":
            return end if self.status == "reading" else at
        self._key, self._value = at_key, []
        self._output.take(text[at:end], "tool")
        self._phase, self._reads_space = self._read_value, True
        return end

    def _quoted_key(self, text: str, at: int) -> tuple[str, int]:
        """A key between quotes, and the end of the colon after it or `WAIT`."""
        begin = at + len(self._quote)
        end = text.find(self._quote, begin)
        if end < 0 or end + len(self._quote) >= len(text):
            self.status = "broken" if len(text) - at > MAX_KEY else "reading"
            return "", WAIT
        after = end + len(self._quote)
        if text[after] != ":":
            self.status = "broken"
        return text[begin:end], after + 1

    def _read_value(self, text: str, at: int) -> int:
        begin = at
        while at < len(text):
            if self._inside:
                end, is_closed = self._string_end(text, at)
                self._inside = "" if is_closed else self._inside
                if end == at:
                    break
                at = end
                continue
            match = self._stop.search(text, at)
            if match is None:
                at = len(text)
                break
            mark, at = match.group(), match.start()
            if mark in (self._quote, '"'):
                self._inside, at = mark, match.end()
            elif mark in ("{", "[", "}", "]", ","):
                if mark in "},]" and not self._depth:
                    return self._end_value(text, begin, at)
                self._depth += {"{": 1, "[": 1, ",": 0}.get(mark, -1)
                at = match.end()
            else:
                break  # the beginning of a quote
        self._value.append(text[begin:at])
        self._output.take(text[begin:at], "tool")
        return WAIT if at == begin else at

    def _string_end(self, text: str, at: int) -> tuple[int, bool]:
        """How far a string goes, and whether it ends there."""
        if self._inside == '"':
            match = _CLOSED_STRING.match(text, at)
            assert match is not None
            end = match.end()
            return (end, True) if match[1] else (end - text.endswith("\\", at), False)
        end = text.find(self._inside, at)
        if end >= 0:
            return end + len(self._inside), True
        partial = re.compile(f"(?:{_beginnings(self._inside)})\\Z").search(text, at)
        return (len(text) if partial is None else partial.start()), False

    def _end_value(self, text: str, begin: int, at: int) -> int:
        self._output.take(text[begin:at], "tool")
        self._phase, self._reads_space = self._end_argument, False
        source = ("".join(self._value) + text[begin:at]).strip()
        value = self._as_json(source)
        if value is None:
            self.status = "broken"
        else:
            self._output.add_argument(quoted(self._key), value)
        return at

    def _as_json(self, source: str) -> str | None:
        quote = self._quote
        inner = source[len(quote) : -len(quote)]
        if source.startswith(quote) and source.endswith(quote) and quote not in inner:
            text, types = without_sentinels(inner), self._fields.types_of(self._key)
            return quoted(text) if types is None else text_to_json(text, types)
        return bare_to_json(source, quote)

    def _end_argument(self, text: str, at: int) -> int:
        return self._pass(text, at, self._read_key) if text[at] == "," else self._read_key(text, at)


def bare_to_json(source: str, quote: str) -> str | None:
    """A value with bare keys and its own quotes as JSON; None for what is none."""
    mark = re.escape(quote)
    tokens = re.compile(
        rf"{mark}(?P<text>.*?){mark}|{_JSON_STRING}|[{{}}\[\],:]|(?P<bare>(?:(?!{mark})[^\s{{}}\[\],:\"])+)"
        r"|\s+",
        re.DOTALL,
    )
    written, at = [], 0
    while at < len(source):
        match = tokens.match(source, at)
        if match is None:
            return None
        at = match.end()
        if (text := match["text"]) is not None:
            written.append(quoted(without_sentinels(text)))
        elif (bare := match["bare"]) is not None:
            written.append(_word(bare, is_key=source[at:].lstrip()[:1] == ":"))
        else:
            written.append(match.group())
    found = "".join(written)
    try:
        orjson.loads(found)
    except orjson.JSONDecodeError:
        return None
    return found


def _word(bare: str, *, is_key: bool) -> str:
    """A word without quotes: a key, a constant or a number, or else a string."""
    bare = _WORDS.get(bare, bare)
    if not is_key:
        try:
            orjson.loads(bare)
        except orjson.JSONDecodeError:
            pass
        else:
            return bare
    return quoted(without_sentinels(bare))


def _beginnings(marker: str) -> str:
    """An expression of a marker's beginnings, itself aside."""
    return "|".join(re.escape(marker[:n]) for n in range(len(marker) - 1, 0, -1)) or "(?!)"
