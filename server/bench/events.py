"""The events of a stream of server-sent events, counted and timed as they come."""

from __future__ import annotations

from array import array
from typing import Any

import orjson

_ENDS = b"[DONE]"
_NO_CHOICES = (b'"choices":[]', b'"choices": []')
"""The mark of the event that only reports usage; quotes within a text are escaped, so that no text
looks like it."""
_LINE_CHARS = 300


class EventTimes:
    """When the chunks of one stream came.

    Events that one read of the socket brought came together: they are one chunk as far as time is
    concerned, and `num_events` events.

    Attributes:
        first, last: when the first and the last event with a choice came, in seconds; 0 before.
        gaps: seconds between chunks, float64.
        num_events: events with a choice.
        failure: the message of the error that the stream sent.
    """

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.gaps = array("d")
        self.num_events = 0
        self.failure: str | None = None
        self._rest = b""
        self._newest = b""

    def feed(self, body: bytes, now: float) -> None:
        """Take a part of the stream, read at `now`, in seconds."""
        lines = (self._rest + body).split(b"\n")
        self._rest = lines.pop()
        had = self.num_events
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())
        if self.num_events > had:
            if had:
                self.gaps.append(now - self.last)
            else:
                self.first = now
            self.last = now

    def _event(self, data: bytes) -> None:
        if data == _ENDS:
            return
        self._newest = data
        if b'"error"' in data and (message := error_message(data)):
            self.failure = self.failure or message
        elif not any(mark in data for mark in _NO_CHOICES):
            self.num_events += 1

    @property
    def usage(self) -> dict[str, Any] | None:
        """The usage that the last event reported, if any."""
        try:
            return usage_of(self._newest)
        except ValueError:
            return None


def usage_of(body: bytes | bytearray) -> dict[str, Any] | None:
    """The usage of a reply or event in JSON; None where there is none.

    Raises:
        ValueError: it is not JSON.
    """
    parsed = orjson.loads(body)
    usage = parsed.get("usage") if isinstance(parsed, dict) else None
    return usage if isinstance(usage, dict) else None


def error_message(body: bytes | bytearray) -> str | None:
    """The message of an error in JSON, in one line; None if there is none.

    OpenAI's servers have it in `error.message`; others in `error`, `detail` or `message`.
    """
    try:
        parsed = orjson.loads(body)
    except ValueError:
        return None
    found: Any = parsed if isinstance(parsed, dict) else {}
    found = found.get("error") or found.get("detail") or found.get("message")
    if isinstance(found, dict):
        found = found.get("message", found)
    return None if not found else one_line(str(found))


def one_line(words: str) -> str:
    """What a server said, as a line that may be shown on a terminal."""
    line = " ".join(words.split())[:_LINE_CHARS]
    return "".join(char if char.isprintable() else "?" for char in line)
