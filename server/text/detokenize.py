"""Ids in, text out, token by token: what was given out is never taken back.

A detokenizer gives out characters as soon as no later token can change them. The joined text
equals that of decoding all ids at once, U+FFFD for broken bytes included. Two kinds know what
each id adds by itself (`Pieces`); a third asks the tokenizer about a sliding window.
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
class Pieces:
    """What each id adds to a text.

    Attributes:
        raw: bytes by id; empty for ids without a token.
        special: ids left out of the text on request.
        byte_ids: ids of single bytes of a "byte fallback" decoder, which turns a whole run of
            them into U+FFFD, one a byte, if the run is not UTF-8; empty where bytes are simply
            concatenated.
    """

    raw: list[bytes]
    special: frozenset[int]
    byte_ids: frozenset[int]


class Detokenizer(Protocol):
    """Text of a growing list of ids.

    Attributes:
        length: characters given out so far.
    """

    length: int

    def feed(self, token_ids: Sequence[int], starts: list[int] | None = None) -> str:
        """Characters that became certain; `starts` gets, per id, how many were before it."""
        ...

    def flush(self) -> str:
        """The rest; nothing may be fed after."""
        ...


class ByteDetokenizer:
    """Where ids are byte strings and the text is their concatenation (byte-level BPE)."""

    def __init__(self, raw: Sequence[bytes]) -> None:
        self.length = 0
        self._raw = raw
        self._decoder = _utf8_decoder("replace")

    def feed(self, token_ids: Sequence[int], starts: list[int] | None = None) -> str:
        pieces = [self._raw[i] for i in token_ids]
        whole = b"".join(pieces)
        if starts is None:
            return self._count(whole)
        if whole.isascii() and not self._decoder.getstate()[0]:  # a character a byte
            starts += accumulate(map(len, pieces), initial=self.length)
            self.length = starts.pop()
            return whole.decode("ascii")
        parts = []
        for piece in pieces:
            starts.append(self.length + self._breaks_off(piece))
            parts.append(self._count(piece))
        return "".join(parts)

    def _breaks_off(self, piece: bytes) -> bool:
        """Whether held bytes become a U+FFFD because `piece` does not go on with them."""
        held = self._decoder.getstate()[0]
        if not held:
            return False
        try:
            codecs.utf_8_decode(held + piece[:1], "strict", False)
        except UnicodeDecodeError:
            return True
        return False

    def flush(self) -> str:
        return self._count(b"", final=True)

    def _count(self, raw: bytes, final: bool = False) -> str:
        text = self._decoder.decode(raw, final)
        self.length += len(text)
        return text


class RunDetokenizer:
    """Byte fallback: a run of byte ids is text if all of it is UTF-8, else U+FFFD a byte.

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
    """Any tokenizer: decodes the last few ids again with each new one and keeps the difference.

    Args:
        decode: ids to text.
        context: ids before the first, so that it is not decoded as the start of a text.
    """

    CONTEXT = 6
    MAX_HELD = 16
    """Ids held back while they look like part of a character."""

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
