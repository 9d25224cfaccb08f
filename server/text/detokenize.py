"""Text of a growing list of ids: what was given out is never taken back.

A detokenizer gives out characters as soon as no later token can change them. The joined text
equals that of decoding all ids at once, U+FFFD for broken bytes included. Two kinds know which
bytes each id adds (`TokenBytes`); a third asks the tokenizer about a sliding window. All note where
in the text each id begins, the `text_offset` of replies.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

REPLACEMENT = "\ufffd"
_utf8_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True)
class TokenBytes:
    """Which bytes each id adds to a text.

    Attributes:
        raw: bytes by id; empty for ids without a token.
        special: ids that are left out of the text on request.
        byte_ids: ids of single bytes of a "byte fallback" decoder, which turns a whole run of
            them into U+FFFD, one a byte, if the run is not UTF-8; empty where bytes are simply
            concatenated.
    """

    raw: list[bytes]
    special: frozenset[int]
    byte_ids: frozenset[int]


class Detokenizer(Protocol):
    """The text of a growing list of ids.

    Attributes:
        length: characters given out so far.
    """

    length: int

    def feed(self, token_ids: Sequence[int], starts: list[int] | None = None) -> str:
        """Return the characters that became certain.

        Args:
            starts: gets, for each id, the place in the text of the character that its first byte
                is part of.
        """
        ...

    def flush(self) -> str:
        """Return the rest; nothing may be fed after."""
        ...


class ByteDetokenizer:
    """Detokenizer of byte-level BPE: ids are byte strings, the text is their concatenation."""

    def __init__(self, raw: Sequence[bytes]) -> None:
        self.length = 0
        self._raw = raw
        self._decoder = _utf8_decoder("replace")

    def feed(self, token_ids: Sequence[int], starts: list[int] | None = None) -> str:
        chunks = [self._raw[i] for i in token_ids]
        whole = b"".join(chunks)
        if starts is None:
            return self._count(whole)
        if whole.isascii() and not self._decoder.getstate()[0]:  # each byte is a character
            starts += accumulate(map(len, chunks), initial=self.length)
            self.length = starts.pop()
            return whole.decode("ascii")
        parts = []
        for chunk in chunks:
            starts.append(self.length + self._num_broken(chunk))
            parts.append(self._count(chunk))
        return "".join(parts)

    def _num_broken(self, chunk: bytes) -> int:
        """How many U+FFFD the held bytes become because `chunk` does not continue them."""
        held = self._decoder.getstate()[0]
        if not held or not chunk:
            return 0
        # The chunk's first byte is part of the last of these characters.
        return len((held + chunk[:1]).decode(errors="replace")) - 1

    def flush(self) -> str:
        return self._count(b"", final=True)

    def _count(self, raw: bytes, final: bool = False) -> str:
        text = self._decoder.decode(raw, final)
        self.length += len(text)
        return text


class RunDetokenizer:
    """Detokenizer of byte fallback: a run of byte ids is text if all of it is UTF-8, and else one
    U+FFFD for each byte.

    A run is held back until it ends, or until it cannot become UTF-8 any more; after `MAX_RUN`
    bytes its whole characters are given out although a later byte might still spoil the run.
    """

    MAX_RUN = 64

    def __init__(self, raw: Sequence[bytes], byte_ids: frozenset[int]) -> None:
        self.length = 0
        self._raw = raw
        self._byte_ids = byte_ids
        self._run = b""
        self._spoilt = False

    def feed(self, token_ids: Sequence[int], starts: list[int] | None = None) -> str:
        parts = []
        for token_id in token_ids:
            raw = self._raw[token_id]
            in_run = token_id in self._byte_ids or not raw
            if not in_run:
                parts.append(self._close_run())
            if starts is not None:
                starts.append(self.length)
            parts.append(self._extend_run(raw) if in_run else self._count(raw.decode()))
        return "".join(parts)

    def flush(self) -> str:
        return self._close_run()

    def _count(self, text: str) -> str:
        self.length += len(text)
        return text

    def _extend_run(self, raw: bytes) -> str:
        self._run += raw
        try:
            text, used = codecs.utf_8_decode(self._run, "strict", False)
        except UnicodeDecodeError:
            self._spoilt = True
        if self._spoilt:
            text, used = REPLACEMENT * len(self._run), len(self._run)
        elif len(self._run) < self.MAX_RUN:
            return ""
        self._run = self._run[used:]
        return self._count(text)

    def _close_run(self) -> str:
        try:
            text = self._run.decode()
        except UnicodeDecodeError:
            text = REPLACEMENT * len(self._run)
        self._run, self._spoilt = b"", False
        return self._count(text)


class WindowDetokenizer:
    """Detokenizer of any tokenizer: it decodes the last few ids again with each new one and keeps
    the difference.

    Args:
        decode: turns ids into text.
        context: ids before the first, so that it is not decoded as the start of a text.
    """

    CONTEXT = 6
    MAX_HELD = 16
    """At most so many ids are held back while they look like part of a character."""

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int] = ()) -> None:
        self.length = 0
        self._decode = decode
        self._window = list(context[-self.CONTEXT :])
        self._num_known = len(self._window)
        self._known = decode(self._window) if self._window else ""

    def feed(self, token_ids: Sequence[int], starts: list[int] | None = None) -> str:
        parts = []
        for token_id in token_ids:
            if starts is not None:
                starts.append(self.length)
            self._window.append(token_id)
            parts.append(self._advance(self.MAX_HELD))
        return "".join(parts)

    def flush(self) -> str:
        return self._advance(0)

    def _advance(self, max_held: int) -> str:
        held = len(self._window) - self._num_known
        whole = self._decode(self._window)
        if not held or (whole.endswith(REPLACEMENT) and held < max_held):
            return ""
        text = whole[len(self._known) :]
        self._window = self._window[-max(self.CONTEXT, 1) :]
        self._num_known = len(self._window)
        self._known = self._decode(self._window)
        self.length += len(text)
        return text
