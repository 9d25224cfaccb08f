"""Pieces of choices as reply objects. Nothing here waits; big replies are rendered in a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from engine.request import Int32Array, PromptScores
from server.choice import Choice, Piece
from server.job import Job, ReplyForm
from server.logprobs import (
    Columns,
    LogprobWriter,
    fragment,
    join_columns,
    packed_logprobs,
    packed_values,
    value_rows,
)
from server.prompts import Prompt
from server.tokenizer import Tokenizer

_NO_VALUES = np.zeros(0, dtype=np.float32)
INLINE_VALUES = 512
"""Replies with fewer values are rendered on the event loop: many may be due in one turn of it."""


@dataclass(frozen=True)
class Echo:
    """A prompt as text: verbatim where its tokens spell it, else as its tokens do.

    Attributes:
        starts: where each token begins in it.
    """

    text: str
    starts: list[int]


def echo_of(prompt: Prompt, form: ReplyForm, tokenizer: Tokenizer) -> Echo:
    """The text in front of an echoed choice.

    Special tokens that the client wrote are part of the text; one that the tokenizer put at
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


class Renderer:
    """Writes the choices of one request.

    Attributes:
        prompt_scores: by prompt, set before a choice's first piece is rendered.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self.prompt_scores: list[PromptScores | None] = [None] * len(job.prompts)
        self._job = job
        self._form = job.form
        self._tokenizer = tokenizer
        self._writer = LogprobWriter(tokenizer.fragments, as_ids=job.form.tokens_as_ids)
        self._echoes: dict[int, Echo] = {}

    def _echo(self, prompt_idx: int) -> Echo:
        if prompt_idx not in self._echoes:
            prompt = self._job.prompts[prompt_idx]
            self._echoes[prompt_idx] = echo_of(prompt, self._form, self._tokenizer)
        return self._echoes[prompt_idx]

    def choice(self, index: int, prompt_idx: int, piece: Piece) -> dict[str, Any]:
        """A choice object of a reply or a chunk."""
        form = self._form
        text = piece.text
        if piece.first and form.echo:
            text = self._echo(prompt_idx).text + text
        body: dict[str, Any] = {"index": index, "text": text, "logprobs": None}
        if form.num_top is not None:
            body["logprobs"] = self._logprobs(prompt_idx, piece)
        body["finish_reason"] = piece.finish_reason
        body["stop_reason"] = piece.stop_reason
        if form.explicit_ids is not None:
            width = len(form.explicit_ids)
            explicit = _NO_VALUES if piece.logprobs is None else piece.logprobs.explicit
            rows = value_rows(explicit.reshape(-1, width), form.packed)
            body["logprob_token_ids"] = {"token_ids": form.explicit_ids, "logprobs": rows}
        if form.return_token_ids:
            body["token_ids"] = piece.token_ids
        if piece.first:
            body |= self._prompt_fields(prompt_idx)
        return body

    def _logprobs(self, prompt_idx: int, piece: Piece) -> dict[str, Any]:
        """The positions of a piece, after the echoed ones where it is the first."""
        form, offset = self._form, 0
        if form.echo:
            offset = len(self._echo(prompt_idx).text)
        token_ids = np.array(piece.token_ids, dtype=np.int32)
        starts = [offset + start for start in piece.starts]
        echoed = piece.first and form.echo
        if form.packed:
            return self._packed(prompt_idx, piece, token_ids, starts, echoed) | {"mode": form.mode}
        num_top, explicit = form.num_top or 0, form.explicit_ids or ()
        parts = self._echoed(prompt_idx) if echoed else []
        if piece.logprobs is not None and piece.token_ids:
            values = piece.logprobs
            parts.append(self._writer.scored(token_ids, starts, values, num_top, explicit))
        else:
            parts.append(self._writer.unscored(token_ids[:0], []))
        return {**join_columns(parts), "mode": form.mode}

    def _echoed(self, prompt_idx: int) -> list[Columns]:
        """Columns of the prompt's tokens: unscored ones, then scored ones."""
        token_ids, echo = self._job.prompts[prompt_idx].token_ids, self._echo(prompt_idx)
        scores = self.prompt_scores[prompt_idx]
        start = len(token_ids) if scores is None else scores.start
        parts = [self._writer.unscored(token_ids[:start], echo.starts[:start])]
        if scores is not None:
            num_top = self._form.num_top or 0
            shown = (token_ids[start:], echo.starts[start:], scores.logprobs, num_top)
            parts.append(self._writer.scored(*shown))
        return parts

    def _packed(
        self,
        prompt_idx: int,
        piece: Piece,
        token_ids: Int32Array,
        starts: list[int],
        echoed: bool,
    ) -> dict[str, Any]:
        start, parts = 0, [] if piece.logprobs is None else [piece.logprobs]
        if not piece.token_ids:
            parts = []
        if echoed:
            prompt = self._job.prompts[prompt_idx].token_ids
            scores = self.prompt_scores[prompt_idx]
            start = len(prompt) if scores is None else scores.start
            token_ids = np.concatenate([prompt, token_ids])
            starts = self._echo(prompt_idx).starts + starts
            parts = ([] if scores is None else [scores.logprobs]) + parts
        return packed_logprobs(token_ids, start, starts, parts, self._form.num_top or 0)

    def _prompt_fields(self, prompt_idx: int) -> dict[str, Any]:
        """What a choice's first piece tells of its prompt, besides `echo`."""
        form = self._form
        fields: dict[str, Any] = {}
        token_ids = self._job.prompts[prompt_idx].token_ids
        if form.return_token_ids:
            fields["prompt_token_ids"] = token_ids.tolist()
        scores = self.prompt_scores[prompt_idx]
        start = len(token_ids) if scores is None else scores.start
        if form.num_prompt_top is not None:
            fields["prompt_logprobs"] = self._prompt_logprobs(token_ids, start, scores)
        if form.prompt_explicit_ids is not None:
            width = len(form.prompt_explicit_ids)
            explicit = _NO_VALUES if scores is None else scores.logprobs.explicit[:, :width]
            fields["prompt_logprob_token_ids"] = {
                "start": start,
                "token_ids": form.prompt_explicit_ids,
                "logprobs": value_rows(explicit.reshape(-1, width), form.packed),
            }
        return fields

    def _prompt_logprobs(
        self, token_ids: Int32Array, start: int, scores: PromptScores | None
    ) -> Any:
        num_top = self._form.num_prompt_top or 0
        if self._form.packed:
            parts = [] if scores is None else [scores.logprobs]
            return {"start": start, **packed_values(parts, num_top)}
        items = ["null"] * start
        if scores is not None:
            items.append(self._writer.prompt_entries(token_ids[start:], scores.logprobs, num_top))
        return fragment(",".join(items))

    def reply(
        self, choices: list[Choice], usage: dict[str, Any], metrics: dict[str, Any] | None
    ) -> bytes:
        """The whole reply, once every choice has ended."""
        job = self._job
        pieces = [(choice, choice.take()) for choice in choices]
        body: dict[str, Any] = {
            "id": job.reply_id,
            "object": "text_completion",
            "created": job.created,
            "model": job.model,
            "choices": [
                self.choice(choice.index, choice.prompt_idx, piece)
                for choice, piece in pieces
                if piece is not None
            ],
            "usage": usage,
            "system_fingerprint": job.fingerprint,
        }
        if metrics is not None:
            body["metrics"] = metrics
        return orjson.dumps(body)

    @property
    def is_big(self) -> bool:
        """Whether a whole reply is to be rendered off the event loop."""
        job, form = self._job, self._form
        per_token = 0 if form.num_top is None else 2 + form.num_top
        per_token += len(form.explicit_ids or ())
        generated = sum(prompt.max_tokens for prompt in job.prompts) * job.n
        return generated * per_token > INLINE_VALUES or self.prompt_is_big

    @property
    def prompt_is_big(self) -> bool:
        """Whether what the first pieces tell of the prompts is to be rendered there."""
        job, form = self._job, self._form
        if not form.shows_prompt:
            return False
        per_token = 1 if form.scoring is None else 3 + form.scoring.num_top
        per_token += len(form.prompt_explicit_ids or ())
        return sum(len(prompt.token_ids) for prompt in job.prompts) * per_token > INLINE_VALUES
