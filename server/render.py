"""Pieces of choices as reply objects. Nothing here waits; big replies are rendered in a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from engine.request import PromptScores
from server.choice import Choice, Piece
from server.job import Job, ReplyForm
from server.logprobs import (
    Columns,
    TokenNames,
    join_columns,
    json_rows,
    prompt_entries,
    scored_columns,
    unscored_columns,
)
from server.prompts import Prompt
from server.tokenizer import Tokenizer

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
        self._names = TokenNames(tokenizer, as_ids=job.form.tokens_as_ids)
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
            rows = [] if piece.logprobs is None else json_rows(piece.logprobs.explicit)
            body["logprob_token_ids"] = {"token_ids": form.explicit_ids, "logprobs": rows}
        if form.return_token_ids:
            body["token_ids"] = piece.token_ids
        if piece.first:
            body |= self._prompt_fields(prompt_idx)
        return body

    def _logprobs(self, prompt_idx: int, piece: Piece) -> dict[str, Any]:
        form, offset = self._form, 0
        parts: list[Columns] = []
        if form.echo:
            echo = self._echo(prompt_idx)
            offset = len(echo.text)
            if piece.first:
                parts += self._echoed(prompt_idx, echo)
        starts = [offset + start for start in piece.starts]
        if piece.logprobs is not None and piece.token_ids:
            explicit = form.explicit_ids or ()
            parts.append(
                scored_columns(
                    self._names,
                    piece.token_ids,
                    starts,
                    piece.logprobs,
                    form.num_top or 0,
                    explicit,
                )
            )
        else:
            parts.append(unscored_columns(self._names, [], []))
        return {**join_columns(parts), "mode": form.mode}

    def _echoed(self, prompt_idx: int, echo: Echo) -> list[Columns]:
        """Columns of the prompt's tokens: unscored ones, then scored ones."""
        form = self._form
        token_ids: list[int] = self._job.prompts[prompt_idx].token_ids.tolist()
        scores = self.prompt_scores[prompt_idx]
        start = len(token_ids) if scores is None else scores.start
        parts = [unscored_columns(self._names, token_ids[:start], echo.starts[:start])]
        if scores is not None:
            parts.append(
                scored_columns(
                    self._names,
                    token_ids[start:],
                    echo.starts[start:],
                    scores.logprobs,
                    form.num_top or 0,
                    (),
                )
            )
        return parts

    def _prompt_fields(self, prompt_idx: int) -> dict[str, Any]:
        """What a choice's first piece tells of its prompt, besides `echo`."""
        form = self._form
        fields: dict[str, Any] = {}
        token_ids: list[int] = self._job.prompts[prompt_idx].token_ids.tolist()
        if form.return_token_ids:
            fields["prompt_token_ids"] = token_ids
        scores = self.prompt_scores[prompt_idx]
        start = len(token_ids) if scores is None else scores.start
        if form.num_prompt_top is not None:
            nulls: list[dict[str, Any] | None] = [None] * start
            fields["prompt_logprobs"] = nulls
            if scores is not None:
                fields["prompt_logprobs"] += prompt_entries(
                    self._names, token_ids[start:], scores.logprobs, form.num_prompt_top
                )
        if form.prompt_explicit_ids is not None:
            width = len(form.prompt_explicit_ids)
            rows = [] if scores is None else json_rows(scores.logprobs.explicit[:, :width])
            fields["prompt_logprob_token_ids"] = {
                "start": start,
                "token_ids": form.prompt_explicit_ids,
                "logprobs": rows,
            }
        return fields

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
