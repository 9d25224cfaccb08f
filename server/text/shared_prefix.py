"""Texts that begin alike, tokenized with their shared beginning tokenized once.

Each text's ids are those of the text tokenized whole. The texts are cut after a line break, before
a letter or digit, where no token of the vocabulary holds both. No merge of a byte-pair encoding can
then cross the cut, and no piece of a unigram model lies over it, so the two sides are tokenized as
if they were alone. Tokenizers look at most one character ahead of what they split off, and never
back: the left side is tokenized with the right one's first character after it, and the right side
after a line break. That the first text's parts join to its ids is checked each time.

What a lone text begins with that later ones are likely to begin with too, such as a conversation
that is asked about again, is cut off alike, and its ids are remembered. What several texts share is
not: where they are cut must not depend on what came before, since what they share counts once.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.arrays import Int32Array
from server.text.tokenizer import Tokenizer

BREAK = "\n"
MIN_SHARED = 256
"""Characters of a shared beginning from which on it pays to look for a cut."""
MAX_KNOWN_CHARS = 1 << 20
"""Characters of all beginnings whose ids are remembered."""
_AFTER_BREAK = re.compile(rb"\n([0-9A-Za-z])")


class PrefixedTexts(NamedTuple):
    """The ids of n texts: `prefix`, and then each text's own ids.

    Attributes:
        prefix: int32 [P].
        rests: n arrays int32, none of them empty.
    """

    prefix: Int32Array
    rests: list[Int32Array]


class PrefixTokenizer:
    """Tokenizes texts that begin alike."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._break_ids: list[int] | None = None
        self._joined: frozenset[str] = frozenset()
        self._known = _KnownBeginnings()

    def encode(self, texts: Sequence[str], begin: int = 0, salt: str = "") -> PrefixedTexts:
        """The ids of texts that are not empty; the texts have written their special tokens.

        Args:
            begin: so many characters later texts are likely to begin with too.
            salt: only texts of equal salts find each other's beginnings.
        """
        if len(texts) == 1:
            return common_prefix([self._lone(texts[0], begin, salt)])
        if (cut := self._cut(texts)) and (found := self._encode_cut(texts, cut)):
            return found
        return common_prefix(self._tokenizer.encode_each(texts))

    def _lone(self, text: str, begin: int, salt: str) -> list[int]:
        """The ids of one text, of which only the end is tokenized where its beginning is known."""
        cut = self._cut_after(text, begin)
        if not cut:
            return self._ids(text)
        assert self._break_ids is not None
        # With the character after it, which tokenizers look at.
        key = (salt, text[: cut + 1])
        known, count = self._known.get(key), len(self._break_ids)
        end = self._ids(BREAK + text[cut:])
        if end[:count] != self._break_ids:
            return self._ids(text)
        if known is not None:
            return known + end[count:]
        whole = self._ids(text)
        size = len(whole) - len(end) + count
        if whole[size:] == end[count:]:
            self._known.put(key, whole[:size])
        return whole

    def _cut_after(self, text: str, begin: int) -> int:
        """Where a text can be cut after what it begins with; 0 for nowhere."""
        if begin < MIN_SHARED or not self._knows_breaks():
            return 0
        cut = text.find(BREAK, begin) + 1
        while 0 < cut < len(text) and not self._is_cut(text[cut]):
            cut = text.find(BREAK, cut) + 1
        return cut if cut < len(text) else 0

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _cut(self, texts: Sequence[str]) -> int:
        """Where all texts can be cut; 0 for nowhere."""
        if len(texts) < 2:
            return 0
        end = _shared_chars(min(texts), max(texts))
        if end < MIN_SHARED or not self._knows_breaks():
            return 0
        text = texts[0]
        while (cut := text.rfind(BREAK, 0, end) + 1) > 0:
            if cut < end and self._is_cut(text[cut : cut + 1]):
                return cut
            end = cut - 1
        return 0

    def _is_cut(self, after: str) -> bool:
        """Whether texts can be cut between a line break and this character, if there is one."""
        return after.isascii() and after.isalnum() and after not in self._joined

    def _knows_breaks(self) -> bool:
        """Whether it is known what a line break's tokens are, and what may follow them."""
        if self._break_ids is None:
            # In one search: the first request waits for it.
            joined = _AFTER_BREAK.findall(b" ".join(self._tokenizer.raw))
            self._joined = frozenset(map(bytes.decode, joined))
            alone, before = self._ids(BREAK), self._ids(f"{BREAK}A")
            is_known = bool(alone) and before[: len(alone)] == alone
            self._break_ids = alone if is_known else []
        return bool(self._break_ids)

    def _encode_cut(self, texts: Sequence[str], cut: int) -> PrefixedTexts | None:
        """The ids of texts cut there; None where the first one's parts do not join."""
        assert self._break_ids is not None
        count = len(self._break_ids)
        cut_texts = [BREAK + text[cut:] for text in texts]
        first, *cut_ids = self._tokenizer.encode_each([texts[0], *cut_texts])
        if any(ids[:count] != self._break_ids or len(ids) == count for ids in cut_ids):
            return None
        whole = np.array(first, dtype=np.int32)
        rests = [np.array(ids[count:], dtype=np.int32) for ids in cut_ids]
        prefix = whole[: len(whole) - len(rests[0])]
        if not np.array_equal(whole[len(prefix) :], rests[0]):
            return None
        return PrefixedTexts(prefix, rests)


class _KnownBeginnings:
    """The ids of texts' beginnings by salt and text, those of late; several threads may ask."""

    def __init__(self) -> None:
        self._ids: OrderedDict[tuple[str, str], list[int]] = OrderedDict()
        self._num_chars = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[str, str]) -> list[int] | None:
        with self._lock:
            if (ids := self._ids.get(key)) is not None:
                self._ids.move_to_end(key)
            return ids

    def put(self, key: tuple[str, str], ids: list[int]) -> None:
        with self._lock:
            if key not in self._ids:
                self._num_chars += _size(key)
            self._ids[key] = ids
            while self._num_chars > MAX_KNOWN_CHARS:
                oldest, _ = self._ids.popitem(last=False)
                self._num_chars -= _size(oldest)


def _size(key: tuple[str, str]) -> int:
    return len(key[0]) + len(key[1])


def _shared_chars(first: str, second: str) -> int:
    """The number of characters that both texts begin with."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_prefix(texts: Sequence[Sequence[int]]) -> PrefixedTexts:
    """Split lists of ids, none of them empty, after what all begin with; each keeps one id."""
    arrays = [np.array(ids, dtype=np.int32) for ids in texts]
    shared = min(map(len, arrays)) - 1
    for ids in arrays[1:]:
        differs = np.flatnonzero(ids[:shared] != arrays[0][:shared])
        if len(differs):
            shared = int(differs[0])
    return PrefixedTexts(arrays[0][:shared], [ids[shared:] for ids in arrays])
