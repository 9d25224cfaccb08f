"""The model's tokens as llguidance knows them, read on a thread while the engine starts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from llguidance import LLTokenizer

from engine.config import StructuredConfig
from engine.errors import first_line

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
        self._loaded: Future[Any] = thread.submit(_load, config)
        self._serialized: Future[str] = thread.submit(_serialize, self._loaded)
        thread.shutdown(wait=False)

    def token_ids(self, text: str) -> list[int]:
        """Wait for the tokenizer and encode a text, with the special tokens of a prompt.

        Raises:
            TokenizerError: it cannot be read.
        """
        try:
            ids: list[int] = self._loaded.result().encode(text)
        except Exception as error:
            raise TokenizerError(
                f"the tokenizer of {self._name} cannot be read: {first_line(error)}"
            ) from error
        return ids

    def result(self, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
        """Wait for the tokenizer and fit it to the model.

        Args:
            vocab_size: ids behind the tokenizer's own are allowed by no grammar.
            eos_token_ids: each of them ends a grammar that is finished.

        Raises:
            TokenizerError: it cannot be read, or has tokens that the model lacks.
        """
        if not eos_token_ids:
            raise TokenizerError("the model's config names no end-of-sequence id")
        try:
            return LLTokenizer(
                self._serialized.result(), vocab_size, list(eos_token_ids), list(SLICES)
            )
        except Exception as error:
            raise TokenizerError(
                f"llguidance cannot read the tokenizer of {self._name}: {first_line(error)}"
            ) from error


def _load(config: StructuredConfig) -> Any:
    from transformers import AutoTokenizer  # seconds to import

    return AutoTokenizer.from_pretrained(
        config.tokenizer, revision=config.revision, trust_remote_code=config.trust_remote_code
    )


def _serialize(loading: Future[Any]) -> str:
    """The tokenizer as the JSON of the library tokenizers, with the tokens added to it."""
    loaded = loading.result()
    if not loaded.is_fast:
        raise ValueError(f"{type(loaded).__name__} is not one of the library tokenizers")
    backend: Any = loaded.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    serialized: str = backend.to_str()
    return serialized
