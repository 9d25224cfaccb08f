"""Pieces of one choice in; what they say, and their tokens with parts, out."""

from __future__ import annotations

from dataclasses import dataclass

from server.chat.parsing.format import Part
from server.chat.parsing.graph import Graph
from server.chat.parsing.machine import Machine
from server.chat.parsing.output import Event, EventKind
from server.chat.parsing.tokens import TokenParts, Vocabulary
from server.chat.parsing.values import ToolTypes
from server.completions.choice import Piece
from server.completions.logprob_queue import LogprobQueue


class ParsedPiece(Piece, frozen=True):
    """A piece whose tokens are those that have their parts now; its text is in the events.

    Attributes:
        parts: what each token belongs to.
        cuts: by index, the bytes in the content of tokens that lie there with some of them only.
    """

    events: list[Event]
    parts: list[Part]
    cuts: dict[int, bytes]


@dataclass(frozen=True)
class ReplyParsing:
    """How the replies to one request are taken apart.

    Attributes:
        state: the state in which each begins.
        shows_special: special tokens that are no markers are text.
        answer_after: ids of the marker behind which the answer begins; none where a reply begins
            with it.
    """

    graph: Graph
    vocabulary: Vocabulary
    types: ToolTypes
    state: str
    shows_special: bool
    answer_after: tuple[int, ...]

    def reader(self) -> PieceReader:
        """A reader for one more choice."""
        return PieceReader(self)


class PieceReader:
    """Takes the pieces of one choice apart.

    Special tokens are cut out of the text by their places; those that are markers go on as one
    character each, so the machine's text is shorter than the choice's.
    """

    def __init__(self, parsing: ReplyParsing) -> None:
        words = parsing.vocabulary
        self._sentinels = parsing.graph.sentinels
        self._texts = words.texts
        hidden = () if parsing.shows_special else words.special.values()
        self._apart = words.silent.union(self._sentinels, hidden)
        self._machine = Machine(parsing.graph, parsing.types, parsing.state)
        self._output = self._machine.output
        self._tokens = TokenParts(words, self._output.spans)
        self._lengths = words.lengths
        self._logprobs = LogprobQueue()
        self._token_ids: list[int] = []
        self._origins: list[int] = []
        self._starts: list[int] = []
        self._num_chars = 0
        self._shift = 0
        self._num_to_skip = 0

    @property
    def num_reasoning(self) -> int:
        """Tokens that were reasoning so far."""
        return self._tokens.num_reasoning

    def flow(self, piece: Piece) -> EventKind | None:
        """Take the next piece apart if it is all of one kind, which most pieces are.

        Returns:
            the kind of the event that the piece's text is; None for a piece that is to be read.
        """
        token_ids, text = piece.token_ids, piece.text
        if self._tokens.are_pending or self._num_to_skip or not (token_ids and text):
            return None
        num_chars = self._num_chars + len(text)
        if piece.starts[-1] + self._lengths[token_ids[-1]] > num_chars:
            return None
        if not self._apart.isdisjoint(token_ids) or (kind := self._machine.flow(text)) is None:
            return None
        self._num_chars = num_chars
        if kind == "reasoning":
            self._tokens.num_reasoning += len(token_ids)
        return kind

    def read(self, piece: Piece, *, ends_by_token: bool = False) -> ParsedPiece:
        """Take the next piece apart.

        Args:
            ends_by_token: the piece's last token ended the choice and is not in its text.
        """
        if piece.finish_reason is None and (kind := self.flow(piece)) is not None:
            part: Part = "tool" if kind == "arguments" or kind == "call" else kind
            event, parts = Event(kind, piece.text), [part] * len(piece.token_ids)
            own = (piece.token_ids, piece.origins, piece.starts)
            return self._parsed(piece, *own, [event], parts, {})
        self._feed(piece, ends_by_token)
        self._token_ids += piece.token_ids
        self._origins += piece.origins
        self._starts += piece.starts
        parts, cuts = self._tokens.decide(self._output.position, piece.finish_reason is not None)
        count = len(parts)
        token_ids, self._token_ids = self._token_ids[:count], self._token_ids[count:]
        origins, self._origins = self._origins[:count], self._origins[count:]
        starts, self._starts = self._starts[:count], self._starts[count:]
        if piece.logprobs is not None:
            self._logprobs.push(piece.logprobs)
        events = self._take_events()
        return self._parsed(piece, token_ids, origins, starts, events, parts, cuts)

    def read_events(self, piece: Piece) -> list[Event]:
        """Take the next piece apart, where it is no last one and no tokens are shown."""
        self._feed(piece, False)
        self._tokens.decide(self._output.position, False)
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._output.events = self._output.events, []
        return events

    def _feed(self, piece: Piece, ends_by_token: bool) -> None:
        """Let the machine read a piece, and note the places of its tokens."""
        token_ids = piece.token_ids
        if self._num_to_skip or not self._apart.isdisjoint(token_ids):
            self._feed_apart(piece, ends_by_token)
        else:
            self._machine.feed(piece.text)
            self._num_chars += len(piece.text)
            starts = piece.starts
            if self._shift:
                starts = [start - self._shift for start in starts]
            self._tokens.push(token_ids, starts)
        if piece.finish_reason is not None:
            self._machine.finish()

    def _parsed(
        self,
        piece: Piece,
        token_ids: list[int],
        origins: list[int],
        starts: list[int],
        events: list[Event],
        parts: list[Part],
        cuts: dict[int, bytes],
    ) -> ParsedPiece:
        is_whole = token_ids is piece.token_ids
        return ParsedPiece(
            first=piece.first,
            text="",
            token_ids=token_ids,
            origins=origins,
            starts=starts,
            logprobs=piece.logprobs if is_whole else self._logprobs.take(len(token_ids)),
            prompt_logprobs=piece.prompt_logprobs,
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
            events=events,
            parts=parts,
            cuts=cuts,
        )

    def _feed_apart(self, piece: Piece, ends_by_token: bool) -> None:
        """Feed text with special tokens in it."""
        text, texts, begin = piece.text, self._texts, self._num_chars
        at = min(self._num_to_skip, len(text))
        self._num_to_skip -= at
        last = len(piece.token_ids) - 1 if ends_by_token else -1
        chunks: list[str] = []
        for i, (token_id, start) in enumerate(zip(piece.token_ids, piece.starts, strict=True)):
            own = texts[token_id]
            if token_id not in self._apart:
                self._tokens.push([token_id], [start - self._shift])
                continue
            found, length = (at, 0) if i == last else _find(text, own, max(start - begin, at))
            sentinel = self._sentinels.get(token_id, "") if length else ""
            self._tokens.push_special(token_id, start - self._shift, len(sentinel))
            if length:
                chunks += (text[at:found], sentinel)
                at = found + length
                self._num_to_skip = len(own) - length
                self._shift += len(own) - len(sentinel)
        chunks.append(text[at:])
        self._num_chars += len(text)
        self._machine.feed("".join(chunks))


def _find(text: str, own: str, at: int) -> tuple[int, int]:
    """Where a special token's own text is, and how much of it is there; 0 characters for none.

    Of the last token there may be a part only, where a stop string holds back or cuts the rest.
    """
    found = text.find(own, at)
    if found >= 0:
        return found, len(own)
    end = text[at:]
    return (at, len(end)) if end and own.startswith(end) else (at, 0)
