"""Turns prompts into ids: off the event loop when long, cut on request and never otherwise."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
import numpy as np

from engine.arrays import Int32Array
from engine.config import EngineInfo
from server.endpoints.completions.schema import CompletionRequest
from server.errors import bad_request
from server.schema.checks import too_long
from server.schema.ids import check_vocab
from server.text.tokenizer import INLINE_CHARS, TEXT_CHARS, Side, Tokenizer


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


@dataclass(frozen=True, slots=True)
class _Truncation:
    max_tokens: int
    side: Side


async def prepare_prompts(
    body: CompletionRequest, *, default_max_tokens: int, info: EngineInfo, tokenizer: Tokenizer
) -> list[Prompt]:
    """Make prompts of a body's texts or ids; raises `ApiError` for one that does not fit."""
    max_tokens = default_max_tokens if body.max_tokens is None else body.max_tokens
    truncation = _truncation(body, max_tokens, info)
    texts = [item for item in body.prompt if isinstance(item, str)]

    def encode() -> list[Int32Array]:
        return [_encode(text, body, truncation, info, tokenizer) for text in texts]

    if texts:
        inline = sum(map(len, texts)) + TEXT_CHARS * len(texts) <= INLINE_CHARS
        encoded = encode() if inline else await asyncio.to_thread(encode)
    else:
        encoded = [_cut(item, truncation) for item in body.prompt if not isinstance(item, str)]
    for token_ids in encoded:
        check_vocab("prompt", token_ids, info.vocab_size)
    given: list[str | None] = [*texts] if texts else [None] * len(encoded)
    return [
        Prompt(token_ids, text, _fitting_max_tokens(body, max_tokens, len(token_ids), info))
        for token_ids, text in zip(encoded, given, strict=True)
    ]


def _truncation(body: CompletionRequest, max_tokens: int, info: EngineInfo) -> _Truncation | None:
    keep = body.truncate_prompt_tokens
    if keep is None:
        return None
    if keep == 0 or keep > info.max_model_len:
        raise bad_request(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens must be -1 or in [1, {info.max_model_len}], got {keep}",
        )
    if keep == -1:
        keep = max(info.max_model_len - max_tokens, 1)
    return _Truncation(keep, body.truncation_side or "left")


def _encode(
    text: str,
    body: CompletionRequest,
    truncation: _Truncation | None,
    info: EngineInfo,
    tokenizer: Tokenizer,
) -> Int32Array:
    at_least = tokenizer.min_tokens(text)
    if truncation is None and at_least > info.max_model_len:
        raise too_long("prompt", f"at least {at_least}", info.max_model_len)
    token_ids = tokenizer.encode(
        text,
        add_special_tokens=body.add_special_tokens is not False,
        max_tokens=truncation.max_tokens if truncation else None,
        truncation_side=truncation.side if truncation else "left",
    )
    if not token_ids:
        raise bad_request("prompt", "prompt must not be empty, got a text without tokens")
    return np.array(token_ids, dtype=np.int32)


def _cut(token_ids: Int32Array, truncation: _Truncation | None) -> Int32Array:
    if truncation is None or len(token_ids) <= truncation.max_tokens:
        return token_ids
    if truncation.side == "left":
        return token_ids[-truncation.max_tokens :]
    return token_ids[: truncation.max_tokens]


def _fitting_max_tokens(
    body: CompletionRequest, max_tokens: int, prompt_len: int, info: EngineInfo
) -> int:
    room = info.max_model_len - prompt_len
    if room < 0 or (room == 0 and max_tokens > 0):
        raise too_long("prompt", str(prompt_len), info.max_model_len)
    if body.max_tokens is None:
        return min(max_tokens, room)
    if max_tokens > room:
        raise bad_request(
            "max_tokens",
            f"max_tokens must be at most {room} after a prompt of {prompt_len} tokens in a "
            f"context of {info.max_model_len}, got {max_tokens}",
            "context_length_exceeded",
        )
    return max_tokens
