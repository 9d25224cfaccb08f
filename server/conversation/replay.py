"""Prompts whose generated parts are the ids that were generated, and not those of their texts.

A text has several tokenizations, and a model need not have generated the one that its tokenizer
makes. Where the template writes what the model wrote, the ids are those that the model has seen,
and that the prefix cache knows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.arrays import Int32Array
from server.response_store.records import GeneratedRun
from server.text.tokenizer import Tokenizer

_WINDOW = 64
"""Characters after a token that show whether a tokenizer would join it with them."""


def replayed_ids(text: str, tokenizer: Tokenizer, runs: Sequence[GeneratedRun] = ()) -> Int32Array:
    """The ids of a prompt, int32 [prompt_len]; the template has written the special tokens.

    Args:
        runs: in order. One whose text is not in its place, as where the template leaves out old
            thoughts, is passed over.
    """
    found: list[int] = []
    last, at = -1, 0
    for start, generated in runs:
        own = _text(generated, tokenizer)
        end = start + len(own)
        if start < at or not own or not text.startswith(own, start):
            continue
        token_ids: list[int] = generated.tolist()
        before = _ids_after(last, text[at:start], tokenizer)
        after = _ids_after(token_ids[-1], text[end : end + _WINDOW], tokenizer)
        if before is not None and after is not None:
            found += before + token_ids
            last, at = token_ids[-1], end
    rest = _ids_after(last, text[at:], tokenizer)
    if rest is None:
        return replayed_ids(text, tokenizer)
    return np.array(found + rest, dtype=np.int32)


def _text(token_ids: Int32Array, tokenizer: Tokenizer) -> str:
    """The text of generated ids; empty where they are no text."""
    raw, size = tokenizer.raw, len(tokenizer.raw)
    try:
        return b"".join(raw[i] for i in token_ids.tolist() if i < size).decode()
    except UnicodeDecodeError:
        return ""


def _ids_after(last: int, text: str, tokenizer: Tokenizer) -> list[int] | None:
    """The ids of a text after a token; None where the tokenizer would join the two.

    Args:
        last: the token; -1 for a text's beginning.
    """
    before = tokenizer.texts[last] if last >= 0 else ""
    token_ids = tokenizer.encode(before + text, add_special_tokens=False)
    if last >= 0:
        if token_ids[:1] != [last]:
            return None
        token_ids = token_ids[1:]
    return token_ids
