"""What replies report of the prompts: their text in front of a reply, their ids and logprobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import Int32Array
from engine.messages.step_output import PromptLogprobs
from server.generation.form import ReplyForm
from server.generation.logprobs import (
    Columns,
    LogprobWriter,
    fragment,
    packed_logprobs,
    value_rows,
)
from server.generation.prepare import PreparedRequest
from server.generation.prompts import Prompt
from server.text.packed import packed
from server.text.tokenizer import Tokenizer

_NO_VALUES = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True)
class Echo:
    """A prompt as text: what the client wrote where its tokens spell that, else what they spell.

    Attributes:
        starts: where in the text each token begins.
    """

    text: str
    starts: list[int]


class PromptReport:
    """What the replies to one request report of its prompts.

    Args:
        writer: writes logprobs of tokens.
    """

    def __init__(self, prepared: PreparedRequest, writer: LogprobWriter) -> None:
        self._prepared = prepared
        self._form = prepared.spec.form
        self._writer = writer
        self._echoes: dict[int, Echo] = {}

    def echo(self, prompt_idx: int) -> Echo:
        """The text in front of an echoed choice."""
        if prompt_idx not in self._echoes:
            prompt = self._prepared.prompts[prompt_idx]
            self._echoes[prompt_idx] = echo_of(prompt, self._form, self._prepared.served.tokenizer)
        return self._echoes[prompt_idx]

    def token_ids(self, prompt_idx: int) -> Int32Array:
        """The prompt, int32 [prompt_len]."""
        return self._prepared.prompts[prompt_idx].token_ids

    def columns(self, prompt_idx: int, reported: PromptLogprobs | None) -> list[Columns]:
        """Columns of the prompt's tokens: those without values, then those with."""
        token_ids, echo = self.token_ids(prompt_idx), self.echo(prompt_idx)
        start = start_of(token_ids, reported)
        parts = [self._writer.without_values(token_ids[:start], echo.starts[:start])]
        if reported is not None:
            arrays, num_top = reported.logprobs, self._form.num_top or 0
            shown = (token_ids[start:], echo.starts[start:], arrays, num_top)
            parts.append(self._writer.with_values(*shown))
        return parts

    def fields(
        self, prompt_idx: int, reported: PromptLogprobs | None, *, is_first: bool = True
    ) -> dict[str, Any]:
        """What a choice's first piece reports of its prompt, besides `echo`, or a further part."""
        form = self._form
        fields: dict[str, Any] = {}
        token_ids = self.token_ids(prompt_idx)
        if form.return_token_ids and is_first:
            fields["prompt_token_ids"] = token_ids.tolist()
        start = start_of(token_ids, reported)
        if form.num_prompt_top is not None:
            fields["prompt_logprobs"] = self._logprobs(token_ids, start, reported)
        if form.prompt_explicit_ids is not None:
            fields["prompt_logprob_token_ids"] = self._explicit(start, reported)
        return fields

    def _explicit(self, start: int, reported: PromptLogprobs | None) -> dict[str, Any]:
        form, wanted = self._form, self._form.prompt_logprobs
        ids = form.prompt_explicit_ids
        assert ids is not None
        width = ids.shape[-1]
        explicit = _NO_VALUES if reported is None else reported.logprobs.explicit[:, :width]
        if wanted is not None and wanted.id_lists is not None:
            ids = ids[start - wanted.start :][: len(explicit)]
        return {
            "start": start,
            "token_ids": packed(ids) if form.packed and ids.ndim == 2 else ids.tolist(),
            "logprobs": value_rows(explicit.reshape(-1, width), form.packed, form.packed_dtype),
        }

    def _logprobs(self, token_ids: Int32Array, start: int, reported: PromptLogprobs | None) -> Any:
        num_top = self._form.num_prompt_top or 0
        if self._form.packed:
            parts = [] if reported is None else [reported.logprobs]
            if self._form.by_part:  # a part has its own ids alone
                count = 0 if reported is None else len(reported.logprobs.chosen)
                token_ids = token_ids[start : start + count]
            dtype = self._form.packed_dtype
            arrays = packed_logprobs(token_ids, start, parts, num_top, dtype=dtype)
            return {**arrays, "mode": self._form.mode}
        items = ["null"] * start
        if reported is not None:
            entries = self._writer.prompt_entries(token_ids[start:], reported.logprobs, num_top)
            items.append(entries)
        return fragment(",".join(items))

    @property
    def num_values(self) -> int:
        """The number of values that first pieces report of the prompts."""
        prepared, form = self._prepared, self._form
        if not form.shows_prompt:
            return 0
        wanted = form.prompt_logprobs
        per_token = 1 if wanted is None else 3 + wanted.num_top + wanted.num_explicit
        num_tokens = sum(len(prompt.token_ids) for prompt in prepared.prompts)
        return num_tokens * per_token * prepared.spec.n


def start_of(token_ids: Int32Array, reported: PromptLogprobs | None) -> int:
    """The first position of a prompt that has values; the prompt's length where none has."""
    return len(token_ids) if reported is None else reported.start


def echo_of(prompt: Prompt, form: ReplyForm, tokenizer: Tokenizer) -> Echo:
    """Make the text in front of an echoed choice.

    Special tokens that the client wrote are part of the text; one that the tokenizer added at
    either end is not.
    """
    token_ids: list[int] = prompt.token_ids.tolist()
    if prompt.text is not None:
        for head, tail in ((0, 0), (1, 0), (0, 1), (1, 1)):
            inner = token_ids[head : len(token_ids) - tail]
            text, starts = _decode_each(inner, False, form.spaces_between, tokenizer)
            if text == prompt.text:
                return Echo(text, [0] * head + starts + [len(text)] * tail)
    return Echo(*_decode_each(token_ids, form.skip_special_tokens, form.spaces_between, tokenizer))


def _decode_each(
    token_ids: list[int], skip_special: bool, between: bool, tokenizer: Tokenizer
) -> tuple[str, list[int]]:
    starts: list[int] = []
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip_special, between=between)
    text = detokenizer.feed(token_ids, starts) + detokenizer.flush()
    whole = tokenizer.decode(token_ids, skip_special_tokens=skip_special)
    if whole == text or not text.endswith(whole):
        return text, starts
    stripped = len(text) - len(whole)  # a text's leading space
    return whole, [max(start - stripped, 0) for start in starts]
