"""Pieces of choices as reply objects. Nothing here waits; big replies are rendered in a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import orjson

from engine.request import Int32Array, PromptLogprobs
from server.completions.choice import Piece, ReplyChoice
from server.completions.logprobs import (
    Columns,
    LogprobWriter,
    fragment,
    join_columns,
    packed_logprobs,
    packed_values,
    value_rows,
)
from server.completions.prepare import Job, ReplyForm
from server.completions.prompts import Prompt
from server.text.tokenizer import Tokenizer

_NO_VALUES = np.zeros(0, dtype=np.float32)
INLINE_VALUES = 512
"""Parts and replies of fewer values are rendered on the event loop: many may be due in one turn of
it, but to hand each of them to a thread and back takes as long."""
PART_TOKENS = 32
"""Logprobs are written in parts of so many tokens while a choice still grows, at each report of the
engine: requests that began together end together, and who waits then waits for the rest only."""


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


class Part(msgspec.Struct, frozen=True):
    """A piece with its logprobs as text, those of an echoed prompt first."""

    piece: Piece
    columns: list[Columns]


class Renderer:
    """Writes the choices of one request.

    Attributes:
        prompt_logprobs: by prompt, set before a choice's first piece is rendered.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self.prompt_logprobs: list[PromptLogprobs | None] = [None] * len(job.prompts)
        self._job = job
        self._form = job.form
        self._tokenizer = tokenizer
        self._writer = LogprobWriter(tokenizer.fragments, as_ids=job.form.tokens_as_ids)
        self._echoes: dict[int, Echo] = {}
        self._parts: dict[int, list[Part]] = {}

    def _echo(self, prompt_idx: int) -> Echo:
        if prompt_idx not in self._echoes:
            prompt = self._job.prompts[prompt_idx]
            self._echoes[prompt_idx] = echo_of(prompt, self._form, self._tokenizer)
        return self._echoes[prompt_idx]

    def choice(self, index: int, prompt_idx: int, piece: Piece) -> dict[str, Any]:
        """A choice object of a reply or a chunk: the piece after those written ahead."""
        form = self._form
        parts = [*self._parts.pop(index, ()), Part(piece, self._columns(prompt_idx, piece))]
        first, last = parts[0].piece, parts[-1].piece
        text = "".join(part.piece.text for part in parts)
        if first.first and form.echo:
            text = self._echo(prompt_idx).text + text
        body: dict[str, Any] = {"index": index, "text": text, "logprobs": None}
        if form.num_top is not None:
            body["logprobs"] = {**self._logprobs(prompt_idx, parts), "mode": form.mode}
        body["finish_reason"] = last.finish_reason
        body["stop_reason"] = last.stop_reason
        if form.explicit_ids is not None:
            arrays = [part.piece.logprobs for part in parts]
            explicit = [_NO_VALUES, *(a.explicit.reshape(-1) for a in arrays if a is not None)]
            rows = np.concatenate(explicit).reshape(-1, len(form.explicit_ids))
            values = value_rows(rows, form.packed)
            body["logprob_token_ids"] = {"token_ids": form.explicit_ids, "logprobs": values}
        if form.return_token_ids:
            body["token_ids"] = [token_id for part in parts for token_id in part.piece.token_ids]
        if first.first:
            body |= self._prompt_fields(prompt_idx)
        return body

    def due(self, choices: list[ReplyChoice]) -> list[ReplyChoice]:
        """Those of the choices of a whole reply that have enough to be written ahead."""
        if self._form.num_top is None or self._form.packed:
            return []
        return [c for c in choices if c.finish_reason is None and c.num_waiting >= PART_TOKENS]

    def write_ahead(self, choices: list[ReplyChoice]) -> None:
        """Write what these choices can give out."""
        for choice in choices:
            if (piece := choice.take()) is not None:
                part = Part(piece, self._columns(choice.prompt_idx, piece))
                self._parts.setdefault(choice.index, []).append(part)

    def _logprobs(self, prompt_idx: int, parts: list[Part]) -> dict[str, Any]:
        if self._form.packed:
            [part] = parts  # nothing is written ahead
            return self._packed(prompt_idx, part.piece)
        return join_columns([columns for part in parts for columns in part.columns])

    def _starts(self, prompt_idx: int, piece: Piece) -> list[int]:
        """Where the tokens of a piece begin, the echoed text included."""
        if not self._form.echo:
            return piece.starts
        offset = len(self._echo(prompt_idx).text)
        return [offset + start for start in piece.starts]

    def _columns(self, prompt_idx: int, piece: Piece) -> list[Columns]:
        """The positions of a piece, after the echoed ones where it is the first."""
        form = self._form
        if form.num_top is None or form.packed:
            return []
        token_ids = np.array(piece.token_ids, dtype=np.int32)
        parts = self._echoed(prompt_idx) if piece.first and form.echo else []
        if piece.logprobs is not None and piece.token_ids:
            starts, explicit = self._starts(prompt_idx, piece), form.explicit_ids or ()
            shown = (token_ids, starts, piece.logprobs, form.num_top, explicit)
            parts.append(self._writer.scored(*shown))
        else:
            parts.append(self._writer.unscored(token_ids[:0], []))
        return parts

    def _echoed(self, prompt_idx: int) -> list[Columns]:
        """Columns of the prompt's tokens: unscored ones, then scored ones."""
        token_ids, echo = self._job.prompts[prompt_idx].token_ids, self._echo(prompt_idx)
        scores = self.prompt_logprobs[prompt_idx]
        start = len(token_ids) if scores is None else scores.start
        parts = [self._writer.unscored(token_ids[:start], echo.starts[:start])]
        if scores is not None:
            num_top = self._form.num_top or 0
            shown = (token_ids[start:], echo.starts[start:], scores.logprobs, num_top)
            parts.append(self._writer.scored(*shown))
        return parts

    def _packed(self, prompt_idx: int, piece: Piece) -> dict[str, Any]:
        start, parts = 0, [] if piece.logprobs is None else [piece.logprobs]
        if not piece.token_ids:
            parts = []
        token_ids = np.array(piece.token_ids, dtype=np.int32)
        starts = self._starts(prompt_idx, piece)
        if piece.first and self._form.echo:
            prompt = self._job.prompts[prompt_idx].token_ids
            scores = self.prompt_logprobs[prompt_idx]
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
        scores = self.prompt_logprobs[prompt_idx]
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
        self, token_ids: Int32Array, start: int, scores: PromptLogprobs | None
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
        self, choices: list[ReplyChoice], usage: dict[str, Any], metrics: dict[str, Any] | None
    ) -> bytes:
        """The whole reply, once every choice has ended."""
        job = self._job
        body: dict[str, Any] = {
            "id": job.reply_id,
            "object": "text_completion",
            "created": job.created,
            "model": job.model,
            "choices": [
                self.choice(choice.index, choice.prompt_idx, piece)
                for choice in choices
                if (piece := choice.take()) is not None
            ],
            "usage": usage,
            "system_fingerprint": job.fingerprint,
        }
        if metrics is not None:
            body["metrics"] = metrics
        return orjson.dumps(body)

    def is_big(self, choices: list[ReplyChoice]) -> bool:
        """Whether what is left to write of a whole reply is to be written off the event loop."""
        form = self._form
        num_values = sum(choice.num_generated for choice in choices) * len(form.explicit_ids or ())
        if form.num_top is not None:
            num_values += sum(choice.num_waiting for choice in choices) * (2 + form.num_top)
        return num_values > INLINE_VALUES or self.prompt_is_big

    @property
    def prompt_is_big(self) -> bool:
        """Whether what the first pieces tell of the prompts is to be rendered there."""
        job, form = self._job, self._form
        if not form.shows_prompt:
            return False
        per_token = 1 if form.prompt_logprobs is None else 3 + form.prompt_logprobs.num_top
        per_token += len(form.prompt_explicit_ids or ())
        return sum(len(prompt.token_ids) for prompt in job.prompts) * per_token > INLINE_VALUES
