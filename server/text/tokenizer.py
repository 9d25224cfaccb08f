"""Text to ids and back. Built by transformers; what happens per request is ours."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from engine.config import ConfigError
from server.text.detokenize import Detokenizer, WindowDetokenizer
from server.text.json_fragments import TokenFragments
from server.text.token_bytes import detokenizer_of, read_pieces

Side = Literal["left", "right"]

_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)
_DECODE_SLICE, _HEAD = 4096, 32
_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer(Protocol):
    """One model's tokenizer.

    Attributes:
        texts: each id's own text, U+FFFD where its bytes are not characters.
        raw: each id's own bytes.
        fragments: the two as JSON, once `reserve` was called.
        description: what `/tokenizer_info` tells.
    """

    texts: list[str]
    raw: list[bytes]
    fragments: TokenFragments
    description: dict[str, Any]

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        truncation_side: Side = "left",
    ) -> list[int]:
        """Ids; with `max_tokens`, text tokens beyond it are dropped on that side."""
        ...

    def min_tokens(self, text: str) -> int:
        """A lower bound of `len(encode(text))`, known without encoding."""
        ...

    def detokenizer(
        self, *, skip_special_tokens: bool, between: bool = True, context: Sequence[int] = ()
    ) -> Detokenizer:
        """A fresh one; `context` are ids before the first, `between` keeps spaces between
        special tokens where the tokenizer writes any."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of ids from a text's start."""
        ...

    def reserve(self, vocab_size: int) -> None:
        """Let `texts` and `raw` cover ids the model has beyond the tokenizer's."""
        ...


class FastTokenizer:
    """Over a `tokenizers.Tokenizer`."""

    def __init__(self, backend: Any, description: dict[str, Any] | None = None) -> None:
        self.description = description or {}
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._pieces = pieces = read_pieces(backend)
        if pieces is not None:
            self.raw = pieces.raw
            self.texts = [raw.decode(errors="replace") for raw in self.raw]
        else:
            size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
            self.texts = [backend.decode([i], skip_special_tokens=False) for i in range(size)]
            self.raw = [text.encode() for text in self.texts]
        self._visible = self._without_special()
        self._longest = max(map(len, self.raw), default=0) if self._covers_bytes() else 0

    def _without_special(self) -> list[bytes]:
        special = self._pieces.special if self._pieces is not None else frozenset[int]()
        return [b"" if i in special else raw for i, raw in enumerate(self.raw)]

    def _covers_bytes(self) -> bool:
        """Whether a token stands for no more of the text than its own bytes."""
        pieces = self._pieces
        return (
            pieces is not None
            and self._backend.normalizer is None
            and not pieces.byte_ids
            and getattr(self._backend.model, "unk_token", None) is None
        )

    def min_tokens(self, text: str) -> int:
        """Bytes over the longest token's."""
        return len(text) // self._longest if self._longest else 0

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        truncation_side: Side = "left",
    ) -> list[int]:
        """See `Tokenizer.encode`. Releases Python's lock, as only the batch call does."""
        backend = self._backend
        whole = max_tokens is None
        encoding = backend.encode_batch([text], add_special_tokens=add_special_tokens and whole)[0]
        if max_tokens is not None:
            num_added = backend.num_special_tokens_to_add(False) if add_special_tokens else 0
            room = max(max_tokens - num_added, 0)
            encoding.truncate(room, direction=truncation_side)
            encoding = backend.post_process(encoding, None, add_special_tokens)
        token_ids: list[int] = encoding.ids
        return token_ids

    def detokenizer(
        self, *, skip_special_tokens: bool, between: bool = True, context: Sequence[int] = ()
    ) -> Detokenizer:
        """See `Tokenizer.detokenizer`; these decoders write no spaces between special tokens."""
        if self._pieces is not None:
            raw = self._visible if skip_special_tokens else self.raw
            return detokenizer_of(self._pieces, raw)

        def decode(token_ids: list[int]) -> str:
            text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
            return text

        return WindowDetokenizer(decode, context)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """In slices, so that no call holds Python's lock for long."""
        head = list(token_ids[:_DECODE_SLICE])
        text: str = self._backend.decode(head, skip_special_tokens=skip_special_tokens)
        if len(token_ids) <= _DECODE_SLICE:
            return text
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        begin = detokenizer.feed(head[:_HEAD])
        stripped = self._backend.decode(head[:_HEAD], skip_special_tokens=skip_special_tokens)
        parts = [stripped if begin.endswith(stripped) else begin]  # a leading space may go
        for start in range(_HEAD, len(token_ids), _DECODE_SLICE):
            parts.append(detokenizer.feed(token_ids[start : start + _DECODE_SLICE]))
        return "".join([*parts, detokenizer.flush()])

    def reserve(self, vocab_size: int) -> None:
        """See `Tokenizer.reserve`; such ids have no text."""
        missing = vocab_size - len(self.raw)
        if missing > 0:
            self.raw.extend([b""] * missing)
            self.texts.extend([""] * missing)
            self._visible.extend([b""] * missing)
        self.fragments = TokenFragments(self.texts, self.raw)


class SlowTokenizer:
    """Over a tokenizer of transformers written in Python; one call at a time."""

    def __init__(self, tokenizer: Any, description: dict[str, Any] | None = None) -> None:
        self.description = description or {}
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self.texts = [self.decode([i]) for i in range(len(tokenizer))]
        self.raw = [text.encode() for text in self.texts]

    def min_tokens(self, text: str) -> int:
        """Nothing is known."""
        return 0

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        truncation_side: Side = "left",
    ) -> list[int]:
        """See `Tokenizer.encode`."""
        with self._lock:
            self._tokenizer.truncation_side = truncation_side
            token_ids: list[int] = self._tokenizer.encode(
                text,
                add_special_tokens=add_special_tokens,
                truncation=max_tokens is not None,
                max_length=max_tokens,
            )
        return token_ids

    def detokenizer(
        self, *, skip_special_tokens: bool, between: bool = True, context: Sequence[int] = ()
    ) -> Detokenizer:
        """See `Tokenizer.detokenizer`."""

        def decode(token_ids: list[int]) -> str:
            return self._decode(token_ids, skip_special_tokens, between)

        return WindowDetokenizer(decode, context)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """See `Tokenizer.decode`."""
        return self._decode(list(token_ids), skip_special_tokens, True)

    def _decode(self, token_ids: list[int], skip_special_tokens: bool, between: bool) -> str:
        with self._lock:
            text: str = self._tokenizer.decode(
                token_ids,
                skip_special_tokens=skip_special_tokens,
                spaces_between_special_tokens=between,
                clean_up_tokenization_spaces=False,
            )
        return text

    def reserve(self, vocab_size: int) -> None:
        """See `Tokenizer.reserve`."""
        missing = vocab_size - len(self.raw)
        if missing > 0:
            self.raw.extend([b""] * missing)
            self.texts.extend([""] * missing)
        self.fragments = TokenFragments(self.texts, self.raw)


def load_tokenizer(
    model: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> Tokenizer:
    """The tokenizer of a folder or hub id; raises `ConfigError` naming what is missing."""
    folder = Path(model)
    if model.startswith(("/", ".", "~")) and not folder.is_dir():
        raise ConfigError(f"no such model folder: {model}")
    if folder.is_dir() and not any((folder / name).exists() for name in _FILES):
        raise ConfigError(f"{model} has no tokenizer: none of {', '.join(_FILES)}")
    from transformers import AutoTokenizer  # seconds to import: only where a server starts

    try:
        loaded = AutoTokenizer.from_pretrained(
            model, revision=revision, trust_remote_code=trust_remote_code
        )
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(f"the tokenizer of {model} cannot be read: {reason}") from error
    if len(loaded) == 0:
        raise ConfigError(f"the tokenizer of {model} is empty")
    description = {name: getattr(loaded, name, None) for name in _NAMES}
    description |= {
        "tokenizer_class": type(loaded).__name__,
        "model_max_length": loaded.model_max_length if loaded.model_max_length < 1e12 else None,
        "vocab_size": len(loaded),
        "chat_template": getattr(loaded, "chat_template", None),
        "add_bos_token": bool(getattr(loaded, "add_bos_token", False)),
        "add_eos_token": bool(getattr(loaded, "add_eos_token", False)),
    }
    if getattr(loaded, "is_fast", False):
        return FastTokenizer(loaded.backend_tokenizer, description)
    return SlowTokenizer(loaded, description)
