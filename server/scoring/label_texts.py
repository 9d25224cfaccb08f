"""Texts of labels as ids: the tokens that each adds to a prompt.

What follows a prompt is tokenized together with its end, so that the ids are those of prompt and
label as one text. A label that would change the prompt's own last token cannot be read there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from string import ascii_uppercase

from server.scoring.labels import Label, LabelTree
from server.text.tokenizer import Tokenizer

NUM_LETTERS = len(ascii_uppercase)
_MAX_ENDS = 256
_MAX_TREES = 1024


class UnreadableLabelError(ValueError):
    """A label's tokens cannot follow the prompt's.

    Attributes:
        index: which of the labels it is.
    """

    def __init__(self, index: int, words: str) -> None:
        super().__init__(words)
        self.index = index


class LabelTexts:
    """Makes ids of labels that follow prompts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[str, str], Label] = {}
        self._codes: dict[tuple[str, int], tuple[str, ...]] = {}
        self._specials = {tokenizer.texts[token_id] for token_id in tokenizer.special_ids} - {""}
        # Prompts of a request end alike, but for thoughts.
        self._last_special = lru_cache(_MAX_ENDS)(self._find_special)

    def end(self, content: str, tail: str) -> str:
        """The end of a prompt that labels are tokenized with.

        It begins with the last special token of the tail, where texts are cut before anything else,
        or with the last line that is not blank.

        Args:
            content, tail: the prompt's last message and what the template writes after it.
        """
        if (cut := self._last_special(tail)) >= 0:
            return tail[cut:]
        text = content + tail
        return text[text.rfind("\n", 0, len(text.rstrip())) + 1 :]

    def _find_special(self, tail: str) -> int:
        """Where the last special token of a tail begins; -1 without one."""
        return max((tail.rfind(text) for text in self._specials), default=-1)

    def ids(self, prompt_end: str, labels: Sequence[str]) -> list[Label]:
        """The tokens of each label after a prompt.

        Args:
            prompt_end: the prompt's last lines, which labels are tokenized with.

        Raises:
            UnreadableLabelError: a label has no tokens of its own.
        """
        before: Label | None = None
        found = []
        for index, label in enumerate(labels):
            if (known := self._known.get((prompt_end, label))) is None:
                before = self._encode(prompt_end) if before is None else before
                known = self._read(prompt_end, before, index, label)
                if len(self._known) >= _MAX_ENDS * NUM_LETTERS:
                    self._known.clear()
                self._known[prompt_end, label] = known
            found.append(known)
        return found

    def _read(self, prompt_end: str, before: Label, index: int, label: str) -> Label:
        whole = self._encode(prompt_end + label)
        if whole[: len(before)] != before:
            words = "it would be tokenized together with the prompt's end"
            raise UnreadableLabelError(index, words)
        if len(whole) == len(before):
            raise UnreadableLabelError(index, "it has no tokens of its own")
        return whole[len(before) :]

    def _encode(self, text: str) -> Label:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def after(self, prompt_end: str, space: str, after: str) -> Label:
        """The first token of what follows a reply; empty where that is not known."""
        word = f"{prompt_end}{space}A"
        return self._encode(word + after)[len(self._encode(word)) :][:1]

    def codes(self, prompt_end: str, space: str, count: int) -> tuple[str, ...]:
        """Short names of `count` options, up to 26 * 26: letters, or pairs of them.

        Pairs that are one token each are read at one position; where there are too few, the pairs
        are those of the fewest letters.
        """
        if count <= NUM_LETTERS:
            return tuple(ascii_uppercase[:count])
        key = (prompt_end, count)
        if key not in self._codes:
            if len(self._codes) >= _MAX_ENDS:
                self._codes.clear()
            self._codes[key] = self._pairs(prompt_end, space, count)
        return self._codes[key]

    def _pairs(self, prompt_end: str, space: str, count: int) -> tuple[str, ...]:
        pairs = ["".join(pair) for pair in product(ascii_uppercase, repeat=2)]
        found = self.ids(prompt_end, [space + pair for pair in pairs])
        lone = [pair for pair, ids in zip(pairs, found, strict=True) if len(ids) == 1]
        if len(lone) >= count:
            return tuple(lone[:count])
        num_letters = next(n for n in range(NUM_LETTERS + 1) if n * n >= count)
        letters = ascii_uppercase[:num_letters]
        return tuple("".join(pair) for pair in product(letters, repeat=2))[:count]


def ended(labels: Sequence[Label], end: Label) -> list[Label]:
    """The labels, those that begin others ended by `end`, so that one excludes the other."""
    known = {label[:n] for label in labels for n in range(len(label))}
    return [label + end if label in known else label for label in labels]


@lru_cache(_MAX_TREES)
def tree_of(labels: tuple[Label, ...]) -> LabelTree:
    """The labels' tree, remembered; raises `LabelError` as `LabelTree.of`."""
    return LabelTree.of(list(labels))
