"""Choices of a chat whose replies are taken apart: reasoning, content and calls as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from server.conversation.parsing.message import MessageWriter, message_of
from server.conversation.parsing.output import Event, EventKind
from server.conversation.parsing.reader import ParsedPiece, PieceReader, ReplyParsing, content_piece
from server.conversation.prompt import ConversationPrompt
from server.conversation.render import ChatRenderer, PieceContent
from server.generation.choice import Piece
from server.generation.prepare import PreparedRequest
from server.generation.render import PLAIN_END, WrittenPiece


@dataclass
class _Reply:
    """What is known of one choice.

    Attributes:
        has_begun: a delta was written.
        kind: of the last text, where it flowed.
        frame: what is around such texts in a chunk; None where they are left out.
    """

    reader: PieceReader
    writer: MessageWriter
    has_begun: bool = False
    kind: EventKind | None = None
    frame: tuple[bytes, bytes] | None = None


class ParsedChatRenderer(ChatRenderer):
    """Writes the choices of one chat request whose replies are taken apart.

    Args:
        reasoning_field: the name of the reasoning; None leaves it out.
        max_calls: later calls of a message are left out; None for no limit.
        holds_reasoning: a stream has the reasoning whole.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        echoed: str,
        *,
        parsing: ReplyParsing,
        reasoning_field: str | None,
        max_calls: int | None,
        holds_reasoning: bool,
    ) -> None:
        super().__init__(prepared, echoed)
        self._parsing = parsing
        self._reasoning_field = reasoning_field
        self._max_calls = max_calls
        self._holds_reasoning = holds_reasoning
        self._shows_tokens = prepared.spec.form.shows_tokens
        self._replies: dict[int, _Reply] = {}

    def _reply(self, index: int) -> _Reply:
        if (known := self._replies.get(index)) is not None:
            return known
        tools = self._parsing.graph.tools
        writer = MessageWriter(
            self._reasoning_field,
            tools.id_chars if tools else None,
            self._max_calls,
            holds_reasoning=self._holds_reasoning,
        )
        self._replies[index] = reply = _Reply(self._parsing.reader(), writer)
        return reply

    def _read(self, index: int, piece: Piece) -> ParsedPiece:
        if isinstance(piece, ParsedPiece):
            return piece
        ends_by_token = piece.finish_reason is not None and self._ends_by_token(piece)
        parsing = self._parsing
        if not self._shows_tokens and parsing.is_content(piece, ends_by_token=ends_by_token):
            parsed = content_piece(piece)
        else:
            parsed = self._reply(index).reader.read(piece, ends_by_token=ends_by_token)
        if piece.first and self._prefix:
            parsed.events.insert(0, Event("content", self._prefix))
        return parsed

    def content(self, piece: Piece) -> PieceContent:
        """Read the next piece of the only choice, to be written in another shape."""
        parsed = self._read(0, piece)
        return PieceContent(parsed.events, self._entries(parsed))

    def chunks(self, index: int, prompt_idx: int, piece: Piece) -> Sequence[bytes]:
        """Write the choice objects of the chunks that a piece makes; there may be none."""
        known = self._replies.get(index)
        is_inside = known is not None and known.has_begun and piece.finish_reason is None
        if known is not None and is_inside and not self._shows_tokens:
            return self._plain_chunks(index, known, piece)
        form, reply = self._form, self._reply(index)
        parsed = self._read(index, piece)
        is_last = piece.finish_reason is not None
        deltas = reply.writer.deltas(parsed.events, is_last=is_last)
        if not deltas and not is_last and not form.packed:
            if self._shows_tokens or piece.first:
                written = self._write(index, prompt_idx, parsed)
                self._ahead.setdefault(index, []).append(written)
            return ()
        if not reply.has_begun:
            reply.has_begun = True
            deltas[:1] = [{"role": "assistant"} | (deltas[0] if deltas else {"content": ""})]
        choice = self.choice(index, prompt_idx, parsed)
        choice["delta"] = deltas[0] if deltas else {}
        if len(deltas) < 2:
            return (orjson.dumps(choice),)
        ends = "finish_reason", "stop_reason", "weight_versions"
        end = {name: choice[name] for name in ends if name in choice}
        choice |= dict.fromkeys(end)
        *middle, last = deltas[1:]
        return [
            orjson.dumps(choice),
            *(_plain_chunk(index, orjson.dumps(delta)) for delta in middle),
            orjson.dumps({"index": index, "delta": last, "logprobs": None, **end}),
        ]

    def _plain_chunks(self, index: int, reply: _Reply, piece: Piece) -> Sequence[bytes]:
        """Chunks of words alone, from the middle of a choice."""
        if (kind := reply.reader.flow(piece)) is not None:
            if kind == "value":
                return ()
            if self._holds_reasoning:
                reply.kind = None
                return self._delta_chunks(index, reply, [Event(kind, piece.text)])
            if kind != reply.kind:
                reply.kind, reply.frame = kind, _frame(index, reply.writer.frame(kind))
            if (around := reply.frame) is None:
                return ()
            return (around[0] + orjson.dumps(piece.text) + around[1],)
        reply.kind = None
        return self._delta_chunks(index, reply, reply.reader.read_events(piece))

    def _delta_chunks(self, index: int, reply: _Reply, events: list[Event]) -> Sequence[bytes]:
        """Chunks of the deltas that events from the middle of a choice make."""
        return [_plain_chunk(index, orjson.dumps(d)) for d in reply.writer.deltas(events)]

    def choice(self, index: int, prompt_idx: int, piece: Piece) -> dict[str, Any]:
        """Make a choice object of a reply or a chunk: a piece after those written ahead."""
        choice = super().choice(index, prompt_idx, self._read(index, piece))
        if choice["finish_reason"] == "stop":
            reply = self._replies.get(index)
            if reply is not None and reply.writer.num_calls:
                choice["finish_reason"] = "tool_calls"
        return choice

    def _write(self, index: int, prompt_idx: int, piece: Piece) -> WrittenPiece:
        return super()._write(index, prompt_idx, self._read(index, piece))

    def _words(self, index: int, prompt_idx: int, pieces: list[Piece]) -> dict[str, Any]:
        if self._form.stream:
            return {"delta": {}}  # `chunks` has it
        events = [e for piece in pieces if isinstance(piece, ParsedPiece) for e in piece.events]
        if index not in self._replies:  # all of it is content
            return {"message": message_of("".join(event.text for event in events))}
        return {"message": self._reply(index).writer.message(events)}

    def _parts(self, piece: Piece) -> tuple[Sequence[str], Mapping[int, bytes]]:
        assert isinstance(piece, ParsedPiece)
        return piece.parts, piece.cuts

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The usage of the request so far, with the tokens of reasoning."""
        if self._parsing.graph.reasoning is None:
            return usage
        num_reasoning = sum(reply.reader.num_reasoning for reply in self._replies.values())
        return usage | {"completion_tokens_details": {"reasoning_tokens": num_reasoning}}


def chat_renderer(
    prepared: PreparedRequest,
    prompt: ConversationPrompt,
    *,
    reasoning_field: str | None,
    echoed: str = "",
    holds_reasoning: bool = False,
) -> ChatRenderer:
    """The renderer of replies to a conversation.

    Args:
        reasoning_field: the name of a message's reasoning; None leaves it out.
        echoed: text before the content.
        holds_reasoning: a stream has a message's reasoning whole.
    """
    if prompt.parsing is None:
        return ChatRenderer(prepared, echoed)
    return ParsedChatRenderer(
        prepared,
        echoed,
        parsing=prompt.parsing,
        reasoning_field=reasoning_field,
        max_calls=prompt.max_calls,
        holds_reasoning=holds_reasoning,
    )


def _frame(index: int, delta: tuple[bytes, bytes] | None) -> tuple[bytes, bytes] | None:
    """What is around a text in a chunk of it alone, by what does in its delta."""
    if delta is None:
        return None
    return b'{"index":%d,"delta":%b' % (index, delta[0]), delta[1] + PLAIN_END


def _plain_chunk(index: int, delta: bytes) -> bytes:
    """A chunk of words alone, from the middle of a choice."""
    return b'{"index":%d,"delta":%b%b' % (index, delta, PLAIN_END)
