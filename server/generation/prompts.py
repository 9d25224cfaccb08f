"""Turns prompts into ids: off the event loop when long, cut on request and never otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np

from engine.arrays import Int32Array
from server.errors import bad_request, too_long
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
    names, prompts = spec.names, []
    limit = served.info.max_model_len
    for i, token_ids in enumerate(await _encoded(spec, served)):
        text, prompt_len = spec.prompts[i], len(token_ids)
        max_tokens = fitting_max_tokens(
            spec.max_tokens, prompt_len, limit, names, spec.fits_context
        )
        prompts.append(Prompt(token_ids, text if isinstance(text, str) else None, max_tokens))
        _check_prompt(spec, prompts[-1])
        check_vocab(names["prompts"], token_ids, served.info.vocab_size)
    return prompts


async def _encoded(spec: GenerationSpec, served: ServedModel) -> Sequence[Int32Array]:
    """The ids of each prompt, int32 [prompt_len]."""
    names, truncation = spec.names, spec.truncation
    limit = served.info.max_model_len
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
        return [item[kept] for item in spec.prompts if not isinstance(item, str)]
    if sum(map(len, texts)) + TEXT_CHARS * len(texts) <= INLINE_CHARS:
        return list(map(encode, texts))
    return await asyncio.to_thread(list, map(encode, texts))


def _check_prompt(spec: GenerationSpec, prompt: Prompt) -> None:
    """Raise a 400 where what is asked of a prompt does not fit its length."""
    names, wanted, prompt_len = spec.names, spec.form.prompt_logprobs, len(prompt.token_ids)
    if spec.form.min_tokens > prompt.max_tokens:
        words = f"must be at most {names['max_tokens']} ({prompt.max_tokens}), "
        raise names.refuse("min_tokens", f"{words}got {spec.form.min_tokens}")
    routes = spec.form.routes
    if routes is not None and routes.start > prompt_len:
        words = f"must be at most the prompt's {prompt_len} tokens, got {routes.start}"
        raise names.refuse("routes_start", words)
    if wanted is None:
        return
    if wanted.id_lists is not None:
        given, count = len(wanted.id_lists), prompt_len - wanted.start
        words = ""
        if len(spec.prompts) != 1:
            words = (
                f"may hold a list for each position of one prompt, got {len(spec.prompts)} prompts"
            )
        elif given != count:
            words = f"must hold {count} lists, one for each of the prompt's {prompt_len} tokens "
            words += f"from prompt_logprob_start {wanted.start} on, got {given}"
        if words:
            param = "prompt_logprob_token_ids"
            raise bad_request(param, f"{param} {words}")
    # A prompt of one token has no logprobs to show: 1, the default, is right for it too.
    start, least = (wanted.start - 1, 0) if spec.form.first_unvalued else (wanted.start, 1)
    if start > least and start >= prompt_len:
        words = f"must be below the prompt's {prompt_len} tokens, got {start}"
        raise names.refuse("prompt_logprob_start", words)
