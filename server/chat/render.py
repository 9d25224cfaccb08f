"""Pieces of choices as messages and deltas, in OpenAI's shapes of a chat."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from server.chat.logprobs import CONTENT, MARKUP, ChatLogprobWriter
from server.completions.choice import Piece
from server.completions.logprobs import Columns
from server.completions.prepare import PreparedRequest
from server.completions.render import PLAIN_END, Renderer
from server.text.tokenizer import Tokenizer


class ChatRenderer(Renderer):
    """Writes the choices of one chat request as reply objects.

    Args:
        echoed: stands in front of the content.
    """

    reply_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, prepared: PreparedRequest, tokenizer: Tokenizer, echoed: str) -> None:
        super().__init__(prepared, tokenizer)
        self._prefix = echoed
        self._special_ids = tokenizer.special_ids
        self._chat_writer = ChatLogprobWriter(
            tokenizer.fragments, as_ids=prepared.form.tokens_as_ids
        )

    def chunk(self, index: int, prompt_idx: int, piece: Piece) -> bytes:
        """Write the choice object of a chunk."""
        form = self._form
        if piece.finish_reason is None and not form.shows_tokens and not piece.first:
            delta = orjson.dumps(piece.text)
            return b'{"index":%d,"delta":{"content":%b}%b' % (index, delta, PLAIN_END)
        return orjson.dumps(self.choice(index, prompt_idx, piece))

    def _words(self, prompt_idx: int, first: Piece, text: str) -> dict[str, Any]:
        if first.first:
            text = self._prefix + text
        if not self._form.stream:
            return {"message": {"role": "assistant", "content": text, "refusal": None}}
        delta = {"role": "assistant", "content": text} if first.first else {"content": text}
        return {"delta": delta if text or first.first else {}}

    def _logprobs_of(self, columns: dict[str, Any]) -> dict[str, Any]:
        return {"content": columns["content"], "refusal": None, "tokens": columns["tokens"]}

    def _columns(self, prompt_idx: int, piece: Piece) -> list[Columns]:
        form = self._form
        if form.num_top is None or form.packed:
            return []
        if piece.logprobs is None or not piece.token_ids:
            return [{"content": "", "tokens": ""}]
        token_ids = np.array(piece.token_ids, dtype=np.int32)
        parts, explicit = self._parts(piece), form.explicit_ids or ()
        shown = (token_ids, parts, piece.logprobs, form.num_top, explicit)
        return [self._chat_writer.columns(*shown)]

    def _parts(self, piece: Piece) -> list[str]:
        """What each token of a piece belongs to: markup is what the content does not show."""
        form = self._form
        hidden = self._special_ids if form.skip_special_tokens else frozenset[int]()
        parts = [MARKUP if token_id in hidden else CONTENT for token_id in piece.token_ids]
        by_token = piece.finish_reason == "stop" and not isinstance(piece.stop_reason, str)
        if by_token and not form.include_stop:
            parts[-1:] = [MARKUP]
        return parts
