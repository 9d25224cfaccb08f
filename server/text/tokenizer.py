"""Turns texts into ids and back. Transformers loads tokenizers; using them is done here."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from engine.config import ConfigError
from engine.errors import first_line
from server.text.detokenize import Detokenizer, WindowDetokenizer
from server.text.json_fragments import TokenFragments
from server.text.token_bytes import detokenizer_of, read_token_bytes

Side = Literal["left", "right"]

INLINE_CHARS = 4096
"""Shorter texts are tokenised on the event loop, a millisecond or two at most."""
TEXT_CHARS = 64
"""Tokenising a short text costs as much as so many characters of a long one."""

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
_SPARE_TOKENS = 1024
"""Tokens of a cut text beyond those that are kept: tokens beside the cut may be other ones."""
_WORD_END = re.compile(r"(?<=\w)\W")
_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer(Protocol):
    """One model's tokenizer.

    Attributes:
        texts: each id's own text, U+FFFD where its bytes are not characters.
        raw: each id's own bytes.
        special_ids: ids that `skip_special_tokens` leaves out of a text.
        fragments: the two as JSON, once `reserve` was called.
        description: the reply of `/tokenizer_info`.
    """

    texts: list[str]
    raw: list[bytes]
    special_ids: frozenset[int]
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
        """The ids of a text; with `max_tokens`, text tokens beyond it are dropped on that side."""
        ...

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, which has written its special tokens."""
        ...

    def min_tokens(self, text: str) -> int:
        """A lower bound of `len(encode(text))`, known without encoding."""
        ...

    def detokenizer(
        self, *, skip_special_tokens: bool, between: bool = True, context: Sequence[int] = ()
    ) -> Detokenizer:
        """A new detokenizer.

        Args:
            between: keep spaces between special tokens, where the tokenizer writes any.
            context: ids before the first.
        """
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of ids that are at a text's start."""
        ...

    def spellings(self, token_ids: Sequence[int]) -> list[str]:
        """How the vocabulary writes ids; an id beyond it is the empty text."""
        ...

    def reserve(self, vocab_size: int) -> None:
        """Let `texts` and `raw` cover ids the model has beyond the tokenizer's."""
        ...


class FastTokenizer:
    """A tokenizer made of a `tokenizers.Tokenizer`."""

    def __init__(self, backend: Any, description: dict[str, Any] | None = None) -> None:
        self.description = description or {}
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._token_bytes = token_bytes = read_token_bytes(backend)
        if token_bytes is not None:
            self.raw = token_bytes.raw
            self.texts = [raw.decode(errors="replace") for raw in self.raw]
        else:
            size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
            self.texts = [backend.decode([i], skip_special_tokens=False) for i in range(size)]
            self.raw = [text.encode() for text in self.texts]
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._visible = self._without_special()
        self._longest_chars = max(map(len, self.texts), default=1)
        self._longest = max(map(len, self.raw), default=0) if self._covers_bytes() else 0

    def _without_special(self) -> list[bytes]:
        known = self._token_bytes
        special = known.special if known is not None else frozenset[int]()
        return [b"" if i in special else raw for i, raw in enumerate(self.raw)]

    def _covers_bytes(self) -> bool:
        """Whether a token is no more of the text than its own bytes."""
        return (
            self._token_bytes is not None
            and self._backend.normalizer is None
            and not self._token_bytes.byte_ids
            and getattr(self._backend.model, "unk_token", None) is None
        )

    def min_tokens(self, text: str) -> int:
        """The text's bytes divided by those of the longest token."""
        return len(text) // self._longest if self._longest else 0

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        truncation_side: Side = "left",
    ) -> list[int]:
        """See `Tokenizer.encode`. Releases Python's lock, as only calls of batches do; the fast one
        keeps no offsets, which takes a fifth of the time."""
        backend = self._backend
        whole = max_tokens is None
        special = add_special_tokens and whole
        part = text if max_tokens is None else self._part(text, max_tokens, truncation_side)
        encoding = backend.encode_batch_fast([part], add_special_tokens=special)[0]
        if max_tokens is not None:
            if len(part) < len(text) and len(encoding.ids) < max_tokens:
                encoding = backend.encode_batch_fast([text], add_special_tokens=False)[0]
            num_added = backend.num_special_tokens_to_add(False) if add_special_tokens else 0
            room = max(max_tokens - num_added, 0)
            encoding.truncate(room, direction=truncation_side)
            encoding = backend.post_process(encoding, None, add_special_tokens)
        token_ids: list[int] = encoding.ids
        return token_ids

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer.encode_each`. One call, which may use several cores and gives Python's
        lock up once."""
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _part(self, text: str, max_tokens: int, side: Side) -> str:
        """As much of a text as holds the tokens that are kept: cut where a word ends, if one does,
        since tokenizers look at words apart."""
        num_chars = (max_tokens + _SPARE_TOKENS) * self._longest_chars
        if len(text) <= 2 * num_chars:
            return text
        begin = num_chars if side == "right" else len(text) - 2 * num_chars
        word_end = _WORD_END.search(text, begin, begin + num_chars)
        cut = begin if word_end is None else word_end.start()
        return text[:cut] if side == "right" else text[cut:]

    def detokenizer(
        self, *, skip_special_tokens: bool, between: bool = True, context: Sequence[int] = ()
    ) -> Detokenizer:
        """See `Tokenizer.detokenizer`; these decoders write no spaces between special tokens."""
        if self._token_bytes is not None:
            raw = self._visible if skip_special_tokens else self.raw
            return detokenizer_of(self._token_bytes, raw)

        def decode(token_ids: list[int]) -> str:
            text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
            return text

        return WindowDetokenizer(decode, context)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """See `Tokenizer.decode`; in slices, so that no call holds Python's lock for long."""
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

    def spellings(self, token_ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.spellings`."""
        return [self._backend.id_to_token(token_id) or "" for token_id in token_ids]

    def reserve(self, vocab_size: int) -> None:
        """See `Tokenizer.reserve`; such ids have no text."""
        missing = vocab_size - len(self.raw)
        if missing > 0:
            self.raw.extend([b""] * missing)
            self.texts.extend([""] * missing)
            self._visible.extend([b""] * missing)
        self.fragments = TokenFragments(self.texts, self.raw)


class SlowTokenizer:
    """A tokenizer made of one of transformers' that is written in Python; one call at a time."""

    def __init__(self, tokenizer: Any, description: dict[str, Any] | None = None) -> None:
        self.description = description or {}
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self.special_ids = frozenset(tokenizer.all_special_ids)
        self.texts = [self.decode([i]) for i in range(len(tokenizer))]
        self.raw = [text.encode() for text in self.texts]

    def min_tokens(self, text: str) -> int:
        """See `Tokenizer.min_tokens`; nothing is known of such tokenizers."""
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

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer.encode_each`."""
        return [self.encode(text, add_special_tokens=False) for text in texts]

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

    def spellings(self, token_ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.spellings`."""
        with self._lock:
            found = self._tokenizer.convert_ids_to_tokens(list(token_ids))
        return ["" if token is None else str(token) for token in found]

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
    """Load the tokenizer of a folder or hub id; raises `ConfigError` naming what is missing."""
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
        raise ConfigError(
            f"the tokenizer of {model} cannot be read: {first_line(error)}"
        ) from error
    if len(loaded) == 0:
        raise ConfigError(f"the tokenizer of {model} is empty")
    description = {name: getattr(loaded, name, None) for name in _NAMES}
    description |= {
        "tokenizer_class": type(loaded).__name__,
        "model_max_length": loaded.model_max_length if loaded.model_max_length < 1e12 else None,
        "vocab_size": len(loaded),
        "chat_template": getattr(loaded, "chat_template", None),
        "special_tokens_map": dict(loaded.special_tokens_map),
        "add_bos_token": bool(getattr(loaded, "add_bos_token", False)),
        "add_eos_token": bool(getattr(loaded, "add_eos_token", False)),
    }
    if getattr(loaded, "is_fast", False):
        return FastTokenizer(loaded.backend_tokenizer, description)
    return SlowTokenizer(loaded, description)
