"""Reads off a `tokenizers` decoder which bytes each id adds to a text, where that is possible.

It understands the byte-level decoder and the SentencePiece-like ones ("▁" for a space, perhaps
with byte fallback). What it reads is compared with the decoder itself on random ids; where anything
differs, or the decoder is of another kind, the bytes are unknown and a window is used.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

from server.text.detokenize import ByteDetokenizer, Detokenizer, RunDetokenizer, TokenBytes

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NUM_CHECKS, _CHECK_LEN = 64, 24


def read_token_bytes(backend: Any) -> TokenBytes | None:
    """Which bytes each id of a `tokenizers.Tokenizer` adds to a text; None where unknown."""
    description = json.loads(backend.to_str())
    to_bytes = _token_to_bytes(description.get("decoder"))
    if to_bytes is None:
        return None
    tokens: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    raw = [b""] * (max(tokens.values(), default=-1) + 1)
    for token, token_id in tokens.items():
        raw[token_id] = to_bytes(token)
    special = {token["id"] for token in description["added_tokens"] if token["special"]}
    byte_ids: set[int] = set()
    if "ByteFallback" in _decoder_types(description["decoder"]):
        byte_ids = {token_id for token, token_id in tokens.items() if _BYTE_TOKEN.fullmatch(token)}
    token_bytes = TokenBytes(raw, frozenset(special), frozenset(byte_ids))
    return token_bytes if _agree(token_bytes, backend) else None


def detokenizer_of(token_bytes: TokenBytes, raw: list[bytes]) -> Detokenizer:
    """A detokenizer over `raw`: the bytes as they were read, or with hidden ids emptied."""
    if token_bytes.byte_ids:
        return RunDetokenizer(raw, token_bytes.byte_ids)
    return ByteDetokenizer(raw)


def _decoder_types(decoder: dict[str, Any]) -> list[str]:
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return [step["type"] for step in steps]


def _token_to_bytes(decoder: dict[str, Any] | None) -> Callable[[str], bytes] | None:
    if decoder is None:
        return None
    types = _decoder_types(decoder)
    if set(types) <= {"ByteLevel", "Fuse"} and "ByteLevel" in types:
        return _byte_level
    if set(types) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return _byte_or_spaced if "ByteFallback" in types else _spaced
    return None


def _byte_level_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level token encodes, as GPT-2 has them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    rest = (byte for byte in range(256) if byte not in printable)
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


_ALPHABET = _byte_level_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()  # an added token in characters of its own


def _spaced(token: str) -> bytes:
    return token.replace("▁", " ").encode()


def _byte_or_spaced(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else _spaced(token)


def _agree(token_bytes: TokenBytes, backend: Any) -> bool:
    """Whether the bytes decode as the decoder does, after a first token that is plain text."""
    hidden = token_bytes.special | token_bytes.byte_ids
    plain = [i for i, raw in enumerate(token_bytes.raw) if raw.isalpha() and i not in hidden]
    if not plain:
        return False
    draw = random.Random(0)
    around_bytes = [*token_bytes.byte_ids, *plain[:16]]
    for check in range(_NUM_CHECKS):
        among = around_bytes if check % 2 and token_bytes.byte_ids else range(len(token_bytes.raw))
        token_ids = [plain[0], *(draw.choice(among) for _ in range(_CHECK_LEN))]
        ours = detokenizer_of(token_bytes, token_bytes.raw)
        text = ours.feed(token_ids) + ours.flush()
        if text != backend.decode(token_ids, skip_special_tokens=False):
            return False
    return True
