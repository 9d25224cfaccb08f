"""Texts that begin alike, tokenized with their shared beginning tokenized once.

Each text's ids are those of the text tokenized whole. The texts are cut after a line break, before
a letter or digit, where no token of the vocabulary holds both. No merge of a byte-pair encoding can
then cross the cut, and no piece of a unigram model lies over it, so the two sides are tokenized as
if they were alone. Tokenizers look at most one character ahead of what they split off, and never
back: the left side is tokenized with the right one's first character after it, and the right side
after a line break. That the first text's parts join to its ids is checked each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.arrays import Int32Array
from server.text.tokenizer import Tokenizer

BREAK = "\n"
MIN_SHARED = 256
"""Characters of a shared beginning from which on it pays to look for a cut."""


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

    def encode(self, texts: Sequence[str]) -> PrefixedTexts:
        """The ids of texts that are not empty; the texts have written their special tokens."""
        if (cut := self._cut(texts)) and (found := self._encode_cut(texts, cut)):
            return found
        return common_prefix(self._tokenizer.encode_each(texts))

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
            after = text[cut : cut + 1]
            if cut < end and after.isascii() and after.isalnum() and after not in self._joined:
                return cut
            end = cut - 1
        return 0

    def _knows_breaks(self) -> bool:
        """Whether it is known what a line break's tokens are, and what may follow them."""
        if self._break_ids is None:
            raw = self._tokenizer.raw
            self._joined = frozenset(
                chr(each[i + 1])
                for each in raw
                for i, byte in enumerate(each[:-1])
                if byte == ord(BREAK)
            )
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
