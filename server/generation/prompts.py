"""Turns prompts into ids: off the event loop when long, cut on request and never otherwise."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np

from engine.arrays import Int32Array
from server.errors import too_long
from server.generation.max_tokens import fitting_max_tokens
from server.generation.served import ServedModel
from server.generation.spec import GenerationSpec
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
    limit, names, truncation = served.info.max_model_len, spec.names, spec.truncation
    texts = [item for item in spec.prompts if isinstance(item, str)]

    def encode(text: str) -> Int32Array:
        if truncation is None and (at_least := served.tokenizer.min_tokens(text)) > limit:
            raise too_long(names["prompts"], f"at least {at_least}", limit)
        token_ids = served.tokenizer.encode(
            text,
            add_special_tokens=spec.add_special_tokens,
            max_tokens=truncation.max_tokens if truncation else None,
            truncation_side=truncation.side if truncation else "left",
        )
        if not token_ids:
            raise names.refuse("prompts", "must not be empty, got a text without tokens")
        return np.array(token_ids, dtype=np.int32)

    if not texts:
        kept = truncation.kept if truncation else slice(None)
        encoded = [item[kept] for item in spec.prompts if not isinstance(item, str)]
    elif sum(map(len, texts)) + TEXT_CHARS * len(texts) <= INLINE_CHARS:
        encoded = list(map(encode, texts))
    else:
        encoded = await asyncio.to_thread(list, map(encode, texts))
    prompts = []
    for i, token_ids in enumerate(encoded):
        check_vocab(names["prompts"], token_ids, served.info.vocab_size)
        max_tokens = fitting_max_tokens(
            spec.max_tokens, len(token_ids), limit, names, spec.fits_context
        )
        prompts.append(Prompt(token_ids, texts[i] if texts else None, max_tokens))
    return prompts
