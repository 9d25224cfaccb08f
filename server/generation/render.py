"""Pieces of choices as reply objects. Nothing here waits; big replies are rendered in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import orjson

from engine.messages.step_output import Origin, PromptLogprobs
from server.generation.choice import Piece, ReplyChoice
from server.generation.logprobs import (
    COLUMNS,
    Columns,
    LogprobWriter,
    join_columns,
    packed_logprobs,
    value_rows,
)
from server.generation.prepare import PreparedRequest
from server.generation.prompt_report import PromptReport, start_of

_ORIGINS = [origin.name.lower() for origin in Origin]
_LONE = "{" + "".join([f'"{name}":[%s],' for name in COLUMNS]) + '"mode":"%s"}'
"""The `logprobs` object of a lone position."""
_NO_VALUES = np.zeros(0, dtype=np.float32)
LONE_END = b',"finish_reason":null,"stop_reason":null}'
PLAIN_END = b',"logprobs":null' + LONE_END
INLINE_VALUES = 512
"""Replies of fewer values are rendered on the event loop: many may be due in one turn of it, but to
hand each of them to a thread and back takes as long."""
CHOICE_VALUES, TEXT_TOKENS = 8, 16
"""A choice takes as long as so many values besides, and a value as long as the text of so many
tokens."""
AHEAD_TOKENS = 32
"""Logprobs are written ahead, so many tokens at a time, while a choice still grows: requests that
began together end together, and each then waits only for the rest of the others."""


class WrittenPiece(msgspec.Struct, frozen=True):
    """A piece with its logprobs as text, those of an echoed prompt first."""

    piece: Piece
    columns: list[Columns]


class Renderer:
    """Writes the choices of one request as reply objects.

    Attributes:
        reply_object, chunk_object: what replies and chunks call themselves.
        null_fields: fields that a choice of a whole reply has as null where nobody asked for them,
            as vLLM's have.
    """

    reply_object = chunk_object = "text_completion"
    null_fields: tuple[str, ...] = ("token_ids", "prompt_token_ids", "prompt_logprobs")

    def __init__(self, prepared: PreparedRequest) -> None:
        tokenizer = prepared.served.tokenizer
        self._prepared = prepared
        self._form = prepared.spec.form
        self._tokenizer = tokenizer
        self._writer = LogprobWriter(tokenizer.fragments, as_ids=prepared.spec.form.tokens_as_ids)
        form = self._form
        self._shows_values_alone = form.num_top is not None and not (
            form.packed
            or form.echo
            or form.kept
            or form.origins
            or form.return_token_ids
            or form.explicit_ids is not None
        )
        self._prompt_report = PromptReport(prepared, self._writer)
        self._ahead: dict[int, list[WrittenPiece]] = {}

    def choice(self, index: int, prompt_idx: int, piece: Piece) -> dict[str, Any]:
        """Make a choice object of a reply or a chunk: a piece after those written ahead."""
        form = self._form
        pieces = [*self._ahead.pop(index, ()), self._write(index, prompt_idx, piece)]
        first, last = pieces[0].piece, piece
        choice: dict[str, Any] = {
            "index": index,
            **self._words(index, prompt_idx, [written.piece for written in pieces]),
            "logprobs": None,
        }
        if form.num_top is not None:
            choice["logprobs"] = {**self._logprobs(prompt_idx, pieces), "mode": form.mode}
        choice["finish_reason"] = last.finish_reason
        choice["stop_reason"] = last.stop_reason
        if form.explicit_ids is not None:
            choice["logprob_token_ids"] = self._explicit(form.explicit_ids, pieces)
        if form.kept:
            choice["kept_logprobs"] = self._kept(pieces)
        if form.return_token_ids:
            choice["token_ids"] = [i for written in pieces for i in written.piece.token_ids]
        if form.origins:
            choice["token_origins"] = self._origins(pieces)
        if form.weight_versions and last.finish_reason is not None:
            choice["weight_versions"] = [
                msgspec.structs.asdict(span) for span in last.weight_versions
            ]
        if first.first or first.prompt_logprobs is not None:
            reported = first.prompt_logprobs
            choice |= self._prompt_fields(prompt_idx, reported, is_first=first.first)
        return choice

    def chunks(self, index: int, prompt_idx: int, piece: Piece) -> Sequence[bytes]:
        """Write the choice objects of the chunks that a piece makes; there may be none."""
        return (self.chunk(index, prompt_idx, piece),)

    def chunk(self, index: int, prompt_idx: int, piece: Piece) -> bytes:
        """Write the choice object of a chunk."""
        form = self._form
        with_prompt = (piece.first and form.shows_prompt) or piece.prompt_logprobs is not None
        if piece.finish_reason is None and not form.shows_tokens and not with_prompt:
            return b'{"index":%d,"text":%b%b' % (index, orjson.dumps(piece.text), PLAIN_END)
        is_lone = self._shows_values_alone and piece.finish_reason is None and not with_prompt
        if is_lone and (logprobs := self._lone_logprobs(piece)) is not None:
            text = orjson.dumps(piece.text)
            return b'{"index":%d,"text":%b,"logprobs":%b%b' % (index, text, logprobs, LONE_END)
        return orjson.dumps(self.choice(index, prompt_idx, piece))

    def _lone_logprobs(self, piece: Piece) -> bytes | None:
        """The `logprobs` object of a piece with one token, joined; None where it needs more care.

        It is what `choice` makes of dicts, in a third of the time: a stream has one for each token.
        """
        values, num_top = piece.place or piece.values, self._form.num_top
        if values is None or num_top is None or len(piece.token_ids) != 1:
            return None
        lone = piece.token_ids[0], piece.starts[0], values, num_top
        if (items := self._writer.one_with_values(*lone)) is None:
            return None
        return (_LONE % (*items, self._form.mode)).encode()

    def _words(self, index: int, prompt_idx: int, pieces: list[Piece]) -> dict[str, Any]:
        """What a choice object of these pieces says."""
        text = "".join(piece.text for piece in pieces)
        if pieces[0].first and self._form.echo:
            text = self._prompt_report.echo(prompt_idx).text + text
        return {"text": text}

    def _write(self, index: int, prompt_idx: int, piece: Piece) -> WrittenPiece:
        return WrittenPiece(piece, self._columns(prompt_idx, piece))

    def _explicit(self, token_ids: tuple[int, ...], pieces: list[WrittenPiece]) -> dict[str, Any]:
        arrays = [written.piece.logprobs for written in pieces]
        values = [_NO_VALUES, *(a.explicit.reshape(-1) for a in arrays if a is not None)]
        rows = np.concatenate(values).reshape(-1, len(token_ids))
        values = value_rows(rows, self._form.packed, self._form.packed_dtype)
        return {"token_ids": token_ids, "logprobs": values}

    def _origins(self, pieces: list[WrittenPiece]) -> list[str]:
        return [_ORIGINS[code] for written in pieces for code in written.piece.origins]

    def _kept(self, pieces: list[WrittenPiece]) -> Any:
        arrays = [written.piece.logprobs for written in pieces]
        values = [_NO_VALUES, *(a.kept for a in arrays if a is not None)]
        return value_rows(np.concatenate(values), self._form.packed, self._form.packed_dtype)

    def due(self, choices: list[ReplyChoice]) -> list[ReplyChoice]:
        """Those of the choices of a whole reply that have enough to be written ahead."""
        if self._form.num_top is None or self._form.packed:
            return []
        return [c for c in choices if c.finish_reason is None and c.num_waiting >= AHEAD_TOKENS]

    def write_ahead(self, choices: list[ReplyChoice]) -> None:
        """Write what these choices can give out."""
        for choice in choices:
            if (piece := choice.take()) is not None:
                written = self._write(choice.index, choice.prompt_idx, piece)
                self._ahead.setdefault(choice.index, []).append(written)

    def _logprobs(self, prompt_idx: int, pieces: list[WrittenPiece]) -> dict[str, Any]:
        if self._form.packed:
            [written] = pieces  # nothing is written ahead
            return self._packed(prompt_idx, written.piece)
        columns = join_columns([columns for written in pieces for columns in written.columns])
        return self._logprobs_of(columns)

    def _logprobs_of(self, columns: dict[str, Any]) -> dict[str, Any]:
        """The `logprobs` object of columns, but for what all shapes of it have."""
        return columns

    def _starts(self, prompt_idx: int, piece: Piece) -> list[int]:
        """Where the tokens of a piece begin, the echoed text included."""
        if not self._form.echo:
            return piece.starts
        offset = len(self._prompt_report.echo(prompt_idx).text)
        return [offset + start for start in piece.starts]

    def _columns(self, prompt_idx: int, piece: Piece) -> list[Columns]:
        """The positions of a piece, after the echoed ones where it is the first."""
        form = self._form
        if form.num_top is None or form.packed:
            return []
        token_ids = np.array(piece.token_ids, dtype=np.int32)
        parts: list[Columns] = []
        if piece.first and form.echo:
            parts = self._prompt_report.columns(prompt_idx, piece.prompt_logprobs)
        if (arrays := piece.logprobs) is not None and piece.token_ids:
            starts, explicit = self._starts(prompt_idx, piece), form.explicit_ids or ()
            shown = (token_ids, starts, arrays, form.num_top, explicit)
            parts.append(self._writer.with_values(*shown, place=piece.place))
        else:
            parts.append(self._writer.without_values(token_ids[:0], []))
        return parts

    def _packed(self, prompt_idx: int, piece: Piece) -> dict[str, Any]:
        arrays = piece.logprobs
        parts = [arrays] if arrays is not None and piece.token_ids else []
        token_ids = np.array(piece.token_ids, dtype=np.int32)
        start, starts = 0, self._starts(prompt_idx, piece)
        if piece.first and self._form.echo:
            prompt, reported = self._prompt_report.token_ids(prompt_idx), piece.prompt_logprobs
            start = start_of(prompt, reported)
            token_ids = np.concatenate([prompt, token_ids])
            starts = self._prompt_report.echo(prompt_idx).starts + starts
            parts = ([] if reported is None else [reported.logprobs]) + parts
        offsets = np.array(starts, dtype=np.int32)
        num_top, dtype = self._form.num_top or 0, self._form.packed_dtype
        return packed_logprobs(token_ids, start, parts, num_top, offsets, dtype)

    def _prompt_fields(
        self, prompt_idx: int, reported: PromptLogprobs | None, *, is_first: bool = True
    ) -> dict[str, Any]:
        """What a choice's first piece reports of its prompt, besides `echo`, or a further part."""
        return self._prompt_report.fields(prompt_idx, reported, is_first=is_first)

    def reply(
        self, choices: list[ReplyChoice], usage: dict[str, Any], metrics: dict[str, Any] | None
    ) -> bytes:
        """Write the whole reply, once every choice has ended."""
        prepared = self._prepared
        reply: dict[str, Any] = {
            "id": prepared.spec.reply_id,
            "object": self.reply_object,
            "created": prepared.created,
            "model": prepared.spec.model,
            "choices": [
                self._with_nulls(self.choice(choice.index, choice.prompt_idx, piece))
                for choice in choices
                if (piece := choice.take()) is not None
            ],
            "usage": self.usage(usage),  # after the choices, whose tokens it may count by kind
            "system_fingerprint": str(prepared.fingerprint),
        }
        reply |= self.top_fields()
        if metrics is not None:
            reply["metrics"] = metrics
        if prepared.ignored_keywords:
            reply["ignored_keywords"] = prepared.ignored_keywords
        return orjson.dumps(reply)

    def _with_nulls(self, choice: dict[str, Any]) -> dict[str, Any]:
        for name in self.null_fields:
            choice.setdefault(name)
        return choice

    def top_fields(self) -> dict[str, Any]:
        """What is reported of the prompt beside the choices, once it was written with one."""
        return {}

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The usage of the request so far, as a reply or a chunk shows it."""
        return usage

    def is_big(self, choices: Sequence[ReplyChoice]) -> bool:
        """Whether what is left to write of a whole reply is to be written off the event loop."""
        form = self._form
        num_tokens = sum(choice.num_generated for choice in choices)
        num_values = CHOICE_VALUES * len(choices) + num_tokens // TEXT_TOKENS
        num_values += num_tokens * len(form.explicit_ids or ())
        if form.num_top is not None:
            num_values += sum(choice.num_waiting for choice in choices) * (2 + form.num_top)
        return num_values > INLINE_VALUES or self.prompt_is_big

    @property
    def prompt_is_big(self) -> bool:
        """Whether what first pieces report of the prompts is to be rendered off the event loop."""
        return self._prompt_report.num_values > INLINE_VALUES
