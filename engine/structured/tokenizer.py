"""The model's tokens as llguidance knows them, read by another process while the engine starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from engine.config import StructuredConfig
from engine.errors import first_line
from engine.parallel.programs import command_of
from engine.structured.tokenizer_program import OK, serialized

_TEXT = '[^"\\\\\\x00-\\x1F\\x7F]'
SLICES = (
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_TEXT}{{1,{length}}}" for length in (1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 20, 30)),
    f"{_TEXT}+",
)
"""The sets of tokens that llguidance allows or refuses as a whole: plain text up to some length.

Its own list has two lengths, 10 and 30; with more, the masks near the end of a string of bounded
length take a third less time."""


class TokenizerError(Exception):
    """llguidance cannot use the model's tokenizer; the message says why."""


class TokenizerReader:
    """Reads a tokenizer in the background, from the moment it is made."""

    def __init__(self, config: StructuredConfig) -> None:
        self._name = config.tokenizer
        thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._serialized: Future[str] = thread.submit(_read, config)
        thread.shutdown(wait=False)

    def token_ids(self, text: str) -> list[int]:
        """Wait for the tokenizer and encode a text, with the special tokens of a prompt.

        Raises:
            TokenizerError: it cannot be read.
        """
        try:
            ids: list[int] = Tokenizer.from_str(self._serialized.result()).encode(text).ids
        except Exception as error:
            raise TokenizerError(
                f"the tokenizer of {self._name} cannot be read: {first_line(error)}"
            ) from error
        return ids

    def result(self, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
        """Wait for the tokenizer and fit it to the model.

        Args:
            vocab_size: ids after the tokenizer's own are allowed by no grammar; tokens of higher
                ids, which the model cannot give, are left out.
            eos_token_ids: each of them ends a grammar that is finished.

        Raises:
            TokenizerError: it cannot be read.
        """
        if not eos_token_ids:
            raise TokenizerError("the model's config names no end-of-sequence id")
        rest = vocab_size, list(eos_token_ids), list(SLICES)
        try:
            text = self._serialized.result()
            try:
                return LLTokenizer(text, *rest)
            except ValueError as error:
                if "vocab size too small" not in str(error):
                    raise
                return LLTokenizer(without_ids_from(vocab_size, text), *rest)
        except Exception as error:
            raise TokenizerError(
                f"llguidance cannot read the tokenizer of {self._name}: {first_line(error)}"
            ) from error


def without_ids_from(end: int, text: str) -> str:
    """A tokenizer as JSON without its tokens of ids from `end` on, and merges that make them."""
    about = json.loads(text)
    about["added_tokens"] = [each for each in about["added_tokens"] if each["id"] < end]
    model = about["model"]
    if isinstance(model["vocab"], list):  # of pieces and their scores, in the order of ids
        model["vocab"] = model["vocab"][:end]
        return json.dumps(about)
    model["vocab"] = {word: i for word, i in model["vocab"].items() if i < end}
    if "merges" in model:
        model["merges"] = [
            each for each in model["merges"] if _parts(each) <= model["vocab"].keys()
        ]
    return json.dumps(about)


def _parts(merge: str | list[str]) -> set[str]:
    """The two tokens of a merge, which older files write with a space, and what they make."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return {first, second, first + second}


def _read(config: StructuredConfig) -> str:
    """The tokenizer as JSON, read by a process of its own if this one would have to import much."""
    if "transformers.models.auto.tokenization_auto" in sys.modules:
        return serialized(config)
    program = command_of("engine.structured.tokenizer_program")
    sent = msgspec.json.encode(config)
    output = subprocess.run(program, input=sent, stdout=subprocess.PIPE, check=True).stdout
    head, _, text = output.partition(b"\n")
    if head != OK:
        raise ValueError(text.decode())
    return text.decode()
