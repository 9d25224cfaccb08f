"""Pieces of choices as messages and deltas, in OpenAI's shapes of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import orjson

from engine.messages.step_output import PromptLogprobs
from server.conversation.logprobs import CONTENT, MARKUP, NO_CUTS, ChatLogprobWriter
from server.conversation.parsing.format import Part
from server.conversation.parsing.message import message_of
from server.conversation.parsing.output import Event
from server.generation.choice import Piece
from server.generation.logprobs import Columns
from server.generation.prepare import PreparedRequest
from server.generation.render import PLAIN_END, Renderer
from server.text.packed import packed

_TOP_FIELDS = ("prompt_token_ids", "prompt_logprobs")
"""Fields of a chat that are beside its choices, as vLLM has them."""
_CODES = {part: code for code, part in enumerate(get_args(Part))}
"""The code of a part in packed logprobs: its place in reasoning, content, tool, markup."""


class PieceContent(NamedTuple):
    """What a piece of a choice says, whatever the shape it is written in.

    Attributes:
        entries: logprobs of tokens of the content, as JSON objects with commas between.
    """

    events: list[Event]
    entries: str


class ChatRenderer(Renderer):
    """Writes the choices of one chat request as reply objects.

    Args:
        echoed: text before the content.
    """

    reply_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    null_fields = ("token_ids",)

    def __init__(self, prepared: PreparedRequest, echoed: str) -> None:
        super().__init__(prepared)
        tokenizer = prepared.served.tokenizer
        self._prefix = echoed
        self._top: dict[str, Any] | None = None
        self._special_ids = tokenizer.special_ids
        self._chat_writer = ChatLogprobWriter(
            tokenizer.fragments, as_ids=prepared.spec.form.tokens_as_ids
        )

    def chunk(self, index: int, prompt_idx: int, piece: Piece) -> bytes:
        """Write the choice object of a chunk."""
        form = self._form
        if piece.finish_reason is None and not form.shows_tokens and not piece.first:
            delta = orjson.dumps(piece.text)
            return b'{"index":%d,"delta":{"content":%b}%b' % (index, delta, PLAIN_END)
        return orjson.dumps(self.choice(index, prompt_idx, piece))

    def content(self, piece: Piece) -> PieceContent:
        """Read the next piece of the only choice, to be written in another shape."""
        events = [Event("content", piece.text)] if piece.text else []
        return PieceContent(events, self._entries(piece))

    def _prompt_fields(
        self, prompt_idx: int, reported: PromptLogprobs | None, *, is_first: bool = True
    ) -> dict[str, Any]:
        """What a choice has of the prompt, which is one alone: the rest is beside the choices."""
        fields = super()._prompt_fields(prompt_idx, reported, is_first=is_first)
        top = {name: fields.pop(name) for name in _TOP_FIELDS if name in fields}
        if self._top is None or not is_first:  # other choices begin with the same
            self._top = top
        return fields

    def top_fields(self) -> dict[str, Any]:
        """See `Renderer`: once in a stream, and in a whole reply also what was not asked for."""
        if not self._form.stream:
            return dict.fromkeys(_TOP_FIELDS) | (self._top or {})
        if self._top:
            top, self._top = self._top, {}
            return top
        return {}

    def _entries(self, piece: Piece) -> str:
        [columns] = self._columns(0, piece) or [{"content": ""}]
        return columns["content"]

    def _words(self, index: int, prompt_idx: int, pieces: list[Piece]) -> dict[str, Any]:
        text, first = "".join(piece.text for piece in pieces), pieces[0]
        if first.first:
            text = self._prefix + text
        if not self._form.stream:
            return {"message": message_of(text)}
        delta = {"role": "assistant", "content": text} if first.first else {"content": text}
        return {"delta": delta if text or first.first else {}}

    def _logprobs_of(self, columns: dict[str, Any]) -> dict[str, Any]:
        return {"content": columns["content"], "refusal": None, "tokens": columns["tokens"]}

    def _columns(self, prompt_idx: int, piece: Piece) -> list[Columns]:
        form = self._form
        if form.num_top is None or form.packed:
            return []
        if (arrays := piece.logprobs) is None or not piece.token_ids:
            return [{"content": "", "tokens": ""}]
        token_ids = np.array(piece.token_ids, dtype=np.int32)
        parts, cuts = self._parts(piece)
        shown = (token_ids, parts, arrays, form.num_top, form.explicit_ids or (), cuts)
        return [self._chat_writer.columns(*shown)]

    def _packed(self, prompt_idx: int, piece: Piece) -> dict[str, Any]:
        parts, _ = self._parts(piece)
        codes = np.array([_CODES[part] for part in parts], dtype=np.uint8)
        return super()._packed(prompt_idx, piece) | {"parts": packed(codes)}

    def _parts(self, piece: Piece) -> tuple[Sequence[str], Mapping[int, bytes]]:
        """What each token of a piece belongs to: markup is what the content does not show.

        Beside it, by index, the bytes in the content of tokens that lie there with some only.
        """
        form = self._form
        hidden = self._special_ids if form.skip_special_tokens else frozenset[int]()
        parts = [MARKUP if token_id in hidden else CONTENT for token_id in piece.token_ids]
        if self._ends_by_token(piece):
            parts[-1:] = [MARKUP]
        return parts, NO_CUTS

    def _ends_by_token(self, piece: Piece) -> bool:
        """Whether the piece's last token ended the choice and is not in its text."""
        by_token = piece.finish_reason == "stop" and not isinstance(piece.stop_reason, str)
        return by_token and not self._form.include_stop
