"""The part of every token of a reply.

A token lies where its text does. One that is cut by the edge of a marker belongs to the first part
it has text in that is not markup; a token without text is markup. That is decided once all of a
token's text is, so it does not depend on chunks.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from server.conversation.parsing.format import Part
from server.conversation.parsing.output import Span
from server.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_CHARS = re.compile(rb"\A[\x80-\xbf]+|[^\x80-\xbf][\x80-\xbf]*")
"""The bytes of each character, which may begin before the token or end after it."""


@dataclass(frozen=True)
class Vocabulary:
    """What parsers know of a model's tokens.

    Attributes:
        texts, raw: each id's own text and bytes, as `Tokenizer` has them.
        lengths: the number of characters that have bytes in each id.
        special: ids by text of the tokens that `skip_special_tokens` leaves out.
        silent: ids without text.
    """

    texts: Sequence[str]
    raw: Sequence[bytes]
    lengths: list[int]
    special: dict[str, int]
    silent: frozenset[int]


def make_vocabulary(
    texts: Sequence[str], raw: Sequence[bytes], special: dict[str, int]
) -> Vocabulary:
    """Note what is known of every id; some tens of milliseconds for a large vocabulary."""
    lengths = [
        len(text) if _REPLACEMENT not in text else len(_CHARS.findall(own))
        for text, own in zip(texts, raw, strict=True)
    ]
    silent = frozenset(i for i, length in enumerate(lengths) if not length)
    return Vocabulary(texts, raw, lengths, special, silent)


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary of a tokenizer that has reserved the model's ids."""
    special = {tokenizer.texts[i]: i for i in sorted(tokenizer.special_ids)}
    return make_vocabulary(tokenizer.texts, tokenizer.raw, special)


class TokenParts:
    """Gives the tokens of one choice their parts, in order.

    Args:
        spans: the stretches of the text, where a machine puts them; those no token needs any more
            are taken away.

    Attributes:
        num_reasoning: tokens that were reasoning so far.
        pending: the ids that have no part yet; always the same list.
    """

    def __init__(self, vocabulary: Vocabulary, spans: list[Span]) -> None:
        self.num_reasoning = 0
        self._vocabulary = vocabulary
        self._spans = spans
        self.pending: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int] = []

    def push(self, token_ids: list[int], starts: list[int]) -> None:
        """Append tokens that begin at these places of the text."""
        lengths = self._vocabulary.lengths
        if len(token_ids) == 1:  # most pieces
            token_id, start = token_ids[0], starts[0]
            self.pending.append(token_id)
            self._starts.append(start)
            self._ends.append(start + lengths[token_id])
            return
        self.pending += token_ids
        self._starts += starts
        self._ends += [start + lengths[i] for i, start in zip(token_ids, starts, strict=True)]

    def push_special(self, token_id: int, start: int, num_chars: int) -> None:
        """Append a token that has another length in the text than its own."""
        self.pending.append(token_id)
        self._starts.append(start)
        self._ends.append(start + num_chars)

    def forget(self) -> None:
        """Drop pending tokens, which are no reasoning."""
        if self.pending:
            self.pending.clear()
            self._starts.clear()
            self._ends.clear()
        del self._spans[:-1]

    def decide(self, position: int, is_final: bool) -> tuple[list[Part], dict[int, bytes]]:
        """The parts of pending tokens whose text is certain, and the bytes of some.

        Args:
            position: so many characters are certain.
            is_final: no more text will come.

        Returns:
            the parts; and by index among them, the bytes that lie in the content, of tokens of
            which not all bytes do.
        """
        parts: list[Part] = []
        cuts: dict[int, bytes] = {}
        spans, starts, ends = self._spans, self._starts, self._ends
        num_ready = len(ends) if is_final else bisect_right(ends, position)
        i = at = 0
        while i < num_ready:
            start = starts[i]
            while at < len(spans) and spans[at][0] <= start:
                at += 1
            end, part = spans[at] if at < len(spans) else (start, "markup")
            if start < ends[i] <= end:
                j = i + 1  # the next ones lie in the same stretch
                while j < num_ready and starts[j] < ends[j] <= end:
                    j += 1
                parts += [part] * (j - i)
                i = j
                continue
            part, in_content = self._part_of_cut(i, at)
            if in_content is not None:
                cuts[i] = in_content
            parts.append(part)
            i += 1
        del self.pending[:i], starts[:i], ends[:i], spans[: min(at, len(spans) - 1)]
        self.num_reasoning += parts.count("reasoning")
        return parts, cuts

    def _part_of_cut(self, i: int, at: int) -> tuple[Part, bytes | None]:
        """The part of a token in several stretches or in none, and its bytes in the content.

        Bytes are given where not all lie there; those that a stop string cut off count as if they
        were there, as they do where replies are not taken apart.

        Args:
            at: the first span that reaches beyond the token's start.
        """
        spans, start, stop = self._spans, self._starts[i], self._ends[i]
        found: Part = "markup"
        shown: list[tuple[int, int]] = []
        begin = start
        while at < len(spans) and begin < stop:
            end, part = min(spans[at][0], stop), spans[at][1]
            if found == "markup":
                found = part
            if part == "content":
                shown.append((begin - start, end - start))
            begin, at = end, at + 1
        if shown and shown[-1][1] == begin - start:  # a stop string may have cut what follows
            shown[-1] = (shown[-1][0], stop - start)
        if not shown or shown == [(0, stop - start)]:
            return found, None
        chars: list[bytes] = _CHARS.findall(self._vocabulary.raw[self.pending[i]])
        return found, b"".join(char for i, j in shown for char in chars[i:j])
