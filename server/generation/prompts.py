"""Turns prompts into ids: off the event loop when long, cut on request and never otherwise."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np

from engine.arrays import Int32Array
from server.generation.served import ServedModel
from server.generation.spec import GenerationSpec
from server.schema.checks import TOO_LONG, too_long
from server.schema.ids import check_vocab
from server.text.tokenizer import INLINE_CHARS, TEXT_CHARS


class Prompt(msgspec.Struct, frozen=True):
    """One prompt.

    Attributes:
        token_ids: what the engine gets.
        text: what the client wrote; None where it sent ids.
        max_tokens: the limit of each choice; clipped to the context where the client named none.
    """

    token_ids: Int32Array
    text: str | None
    max_tokens: int


async def prepare_prompts(spec: GenerationSpec, served: ServedModel) -> list[Prompt]:
    """Make prompts of a spec's texts or ids; raises `ApiError` for one that does not fit."""
    info, names, max_tokens = served.info, spec.names, spec.max_tokens
    texts = [item for item in spec.prompts if isinstance(item, str)]
    if texts:
        inline = sum(map(len, texts)) + TEXT_CHARS * len(texts) <= INLINE_CHARS
        args = texts, spec, served
        encoded = _encode(*args) if inline else await asyncio.to_thread(_encode, *args)
    else:
        kept = spec.truncation.kept if spec.truncation else slice(None)
        encoded = [item[kept] for item in spec.prompts if not isinstance(item, str)]
    prompts = []
    for i, token_ids in enumerate(encoded):
        check_vocab(names["prompts"], token_ids, info.vocab_size)
        room = info.max_model_len - len(token_ids)
        if room < 0 or (room == 0 and max_tokens > 0):
            raise too_long(names["prompts"], str(len(token_ids)), info.max_model_len)
        if max_tokens > room and not spec.fits_context:
            words = f"must be at most {room} after a prompt of {len(token_ids)} tokens in a "
            words += f"context of {info.max_model_len}, got {max_tokens}"
            raise names.refuse("max_tokens", words, TOO_LONG)
        prompts.append(Prompt(token_ids, texts[i] if texts else None, min(max_tokens, room)))
    return prompts


def _encode(texts: list[str], spec: GenerationSpec, served: ServedModel) -> list[Int32Array]:
    tokenizer, truncation = served.tokenizer, spec.truncation
    encoded, max_model_len = [], served.info.max_model_len
    for text in texts:
        at_least = tokenizer.min_tokens(text)
        if truncation is None and at_least > max_model_len:
            raise too_long(spec.names["prompts"], f"at least {at_least}", max_model_len)
        token_ids = tokenizer.encode(
            text,
            add_special_tokens=spec.add_special_tokens,
            max_tokens=truncation.max_tokens if truncation else None,
            truncation_side=truncation.side if truncation else "left",
        )
        if not token_ids:
            raise spec.names.refuse("prompts", "must not be empty, got a text without tokens")
        encoded.append(np.array(token_ids, dtype=np.int32))
    return encoded
