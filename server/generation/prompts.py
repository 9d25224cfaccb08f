"""Turns prompts into ids: off the event loop when long, cut on request and never otherwise."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np

from engine.arrays import Int32Array
from engine.contracts.info import EngineInfo
from server.generation.served import ServedModel
from server.generation.spec import GenerationSpec, Truncation
from server.schema.checks import too_long
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
    info = served.info
    texts = [item for item in spec.prompts if isinstance(item, str)]

    def encode() -> list[Int32Array]:
        return [_encode(text, spec, served) for text in texts]

    if texts:
        inline = sum(map(len, texts)) + TEXT_CHARS * len(texts) <= INLINE_CHARS
        encoded = encode() if inline else await asyncio.to_thread(encode)
    else:
        encoded = [
            _cut(item, spec.truncation) for item in spec.prompts if not isinstance(item, str)
        ]
    for token_ids in encoded:
        check_vocab(spec.names["prompts"], token_ids, info.vocab_size)
    given: list[str | None] = [*texts] if texts else [None] * len(encoded)
    return [
        Prompt(token_ids, text, _fitting_max_tokens(spec, len(token_ids), info))
        for token_ids, text in zip(encoded, given, strict=True)
    ]


def _encode(text: str, spec: GenerationSpec, served: ServedModel) -> Int32Array:
    tokenizer, truncation = served.tokenizer, spec.truncation
    at_least, max_model_len = tokenizer.min_tokens(text), served.info.max_model_len
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
    return np.array(token_ids, dtype=np.int32)


def _cut(token_ids: Int32Array, truncation: Truncation | None) -> Int32Array:
    if truncation is None or len(token_ids) <= truncation.max_tokens:
        return token_ids
    if truncation.side == "left":
        return token_ids[-truncation.max_tokens :]
    return token_ids[: truncation.max_tokens]


def _fitting_max_tokens(spec: GenerationSpec, prompt_len: int, info: EngineInfo) -> int:
    max_tokens, room = spec.max_tokens, info.max_model_len - prompt_len
    if room < 0 or (room == 0 and max_tokens > 0):
        raise too_long(spec.names["prompts"], str(prompt_len), info.max_model_len)
    if spec.fits_context:
        return min(max_tokens, room)
    if max_tokens > room:
        raise spec.names.refuse(
            "max_tokens",
            f"must be at most {room} after a prompt of {prompt_len} tokens in a context of "
            f"{info.max_model_len}, got {max_tokens}",
            "context_length_exceeded",
        )
    return max_tokens
