"""What an endpoint asks the engine to generate, in the words of the engine and the sampler."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from engine.arrays import Int32Array
from sampling.params import SamplingParams
from server.errors import ClientNames
from server.generation.form import ReplyForm
from server.structured.spec import NO_CONSTRAINTS, Constraints
from server.text.tokenizer import Side

Prompts: TypeAlias = list[str] | list[Int32Array]
"""Texts to be tokenized, or ids, int32 [prompt_len] each."""


class Truncation(msgspec.Struct, frozen=True):
    """Prompts of more than `max_tokens` tokens are cut on one side."""

    max_tokens: int
    side: Side

    @property
    def kept(self) -> slice:
        """The part of a prompt's ids that is left."""
        return slice(-self.max_tokens, None) if self.side == "left" else slice(self.max_tokens)


class GenerationSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a reply needs. Each endpoint makes one directly of its own body.

    Attributes:
        names: what the endpoint's clients call these fields, for errors.
        reply_id, model: as in the reply.
        max_tokens: limit of each choice.
        fits_context: a choice with less room in the context has that as its limit; else the request
            is refused.
        n: choices of each prompt.
        prompt_names: names each prompt's request, by which it may be aborted; without them all have
            the reply's id.
        stream_interval: tokens between two chunks of a stream, at least.
        adapter_digest: as of `Request.adapter_digest`.
        add_special_tokens: the tokenizer adds its beginning of text to prompts that are texts.
        truncation: None leaves prompts whole.
    """

    names: ClientNames
    reply_id: str
    model: str
    prompts: Prompts
    params: SamplingParams
    form: ReplyForm
    max_tokens: int
    fits_context: bool
    constraints: Constraints = NO_CONSTRAINTS
    n: int = 1
    priority: int = 0
    cache_salt: str = ""
    adapter_digest: str = ""
    prompt_names: tuple[str, ...] = ()
    stream_interval: int = 1
    add_special_tokens: bool = True
    truncation: Truncation | None = None

    def name_of(self, prompt_idx: int) -> str:
        """The name of a prompt's request."""
        return self.prompt_names[prompt_idx] if self.prompt_names else self.reply_id
