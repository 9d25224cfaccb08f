"""Pieces of one choice in; what they say, and their tokens with parts, out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from server.conversation.parsing.format import CONTENT, Part, Start
from server.conversation.parsing.graph import Find, Graph
from server.conversation.parsing.machine import Flow, Machine
from server.conversation.parsing.output import Event
from server.conversation.parsing.tokens import TokenParts, Vocabulary
from server.conversation.parsing.values import ToolTypes
from server.generation.choice import Piece
from server.generation.logprob_queue import LogprobQueue


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
class ThoughtIds:
    """The ids of the markers around the thoughts of a request's replies.

    Attributes:
        begin, end: around thoughts, wherever they are.
        answer: what the answer follows, where a reply thinks first.
        are_open: a reply begins inside its thoughts.
        may_come: a reply may begin with thoughts; else it begins with its answer.
        may_be_skipped: one that does not open thoughts at once begins with its answer.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    answer: tuple[int, ...]
    are_open: bool
    may_come: bool
    may_be_skipped: bool


@dataclass(frozen=True)
class ReplyParsing:
    """How the replies to one request are taken apart.

    Attributes:
        state: the state in which each begins.
        shows_special: special tokens that are no markers are text.
        is_held_to_calls: the replies are calls alone, beside thoughts.
        thoughts: the markers of its thoughts; None where none are looked for.
    """

    graph: Graph
    vocabulary: Vocabulary
    types: ToolTypes
    state: str
    shows_special: bool
    thoughts: ThoughtIds | None
    is_held_to_calls: bool = False

    @cached_property
    def apart(self) -> frozenset[int]:
        """The ids of tokens that are cut out of the text."""
        words = self.vocabulary
        hidden = () if self.shows_special else words.special.values()
        return words.silent.union(self.graph.sentinels, hidden)

    @cached_property
    def _finds(self) -> tuple[Find, ...] | None:
        """What finds nothing in a reply that is all content; None where such a reply cannot be
        known without a machine."""
        node, content = self.graph.nodes[self.state], self.graph.nodes[CONTENT]
        if node is content:
            return (content.find,)
        state = node.state
        is_first = isinstance(state, Start) and state.otherwise == CONTENT
        return (node.find, content.find) if is_first else None

    def is_content(self, piece: Piece, *, ends_by_token: bool) -> bool:
        """Whether a piece is a whole reply and all of it is content, as machines would find.

        Args:
            ends_by_token: as for `PieceReader.read`.
        """
        if not piece.first or piece.finish_reason is None or self._finds is None:
            return False
        token_ids = piece.token_ids[:-1] if ends_by_token else piece.token_ids
        text = piece.text
        if not text or text[0].isspace() or not self.apart.isdisjoint(token_ids):
            return False
        return all(find(text, 0) is None for find in self._finds)

    def reader(self) -> PieceReader:
        """A reader for one more choice."""
        return PieceReader(self)


def content_piece(piece: Piece) -> ParsedPiece:
    """A whole reply that is content, where the parts of its tokens are not reported."""
    return ParsedPiece(
        first=piece.first,
        text="",
        token_ids=piece.token_ids,
        origins=piece.origins,
        starts=piece.starts,
        values=piece.logprobs,
        place=None,
        prompt_logprobs=piece.prompt_logprobs,
        finish_reason=piece.finish_reason,
        stop_reason=piece.stop_reason,
        weight_versions=piece.weight_versions,
        events=[Event("content", piece.text)],
        parts=[],
        cuts={},
    )


class PieceReader:
    """Takes the pieces of one choice apart.

    Special tokens are cut out of the text by their places; those that are markers go on as one
    character each, so the machine's text is shorter than the choice's.
    """

    def __init__(self, parsing: ReplyParsing) -> None:
        words = parsing.vocabulary
        self._sentinels = parsing.graph.sentinels
        self._texts = words.texts
        self._apart = parsing.apart
        self._machine = Machine(
            parsing.graph,
            parsing.types,
            parsing.state,
            is_held_to_calls=parsing.is_held_to_calls,
        )
        self._output = self._machine.output
        self._tokens = TokenParts(words, self._output.spans)
        self._pending = self._tokens.pending
        self._lengths = words.lengths
        self._logprobs = LogprobQueue()
        self._token_ids: list[int] = []
        self._origins: list[int] = []
        self._starts: list[int] = []
        self._num_chars = 0
        self._shift = 0
        self._num_to_skip = 0
        self._may_count = False

    @property
    def num_reasoning(self) -> int:
        """Tokens that were reasoning so far."""
        return self._tokens.num_reasoning

    def flow(self, piece: Piece) -> Flow | None:
        """Take the next piece apart if it is all of one kind, which most pieces are.

        Returns:
            the kind of the event that the piece's text is, or `value`; None for a piece that is to
            be read.
        """
        token_ids, text = piece.token_ids, piece.text
        if not self._machine.flows or self._num_to_skip or self._pending:
            return None
        if not (token_ids and text):
            return None
        last = token_ids[-1]
        num_chars = self._num_chars + len(text)
        if piece.starts[-1] + self._lengths[last] > num_chars or last in self._apart:
            return None
        if len(token_ids) > 1 and not self._apart.isdisjoint(token_ids):
            return None
        if (kind := self._machine.flow(text)) is None:
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
        flows = piece.finish_reason is None and not self._machine.waits
        if flows and (kind := self.flow(piece)) is not None:
            part: Part = kind if kind == "content" or kind == "reasoning" else "tool"
            events = [] if kind == "value" else [Event(kind, piece.text)]
            parts = [part] * len(piece.token_ids)
            own = (piece.token_ids, piece.origins, piece.starts)
            return self._parsed(piece, *own, events, parts, {})
        self._feed(piece, ends_by_token)
        self._token_ids += piece.token_ids
        self._origins += piece.origins
        self._starts += piece.starts
        parts, cuts = self._tokens.decide(self._output.position, piece.finish_reason is not None)
        self._may_count = bool(self._pending)
        count = len(parts)
        token_ids, self._token_ids = self._token_ids[:count], self._token_ids[count:]
        origins, self._origins = self._origins[:count], self._origins[count:]
        starts, self._starts = self._starts[:count], self._starts[count:]
        if (arrays := piece.logprobs) is not None:
            self._logprobs.push(arrays)
        events = self._take_events()
        return self._parsed(piece, token_ids, origins, starts, events, parts, cuts)

    def read_events(self, piece: Piece) -> list[Event]:
        """Take the next piece apart, where it is no last one and no tokens are shown."""
        output, tokens, machine = self._output, self._tokens, self._machine
        machine.has_thought = machine.is_thinking
        is_plain = not self._num_to_skip and self._apart.isdisjoint(piece.token_ids)
        if is_plain:
            machine.feed(piece.text)
            self._num_chars += len(piece.text)
        else:
            self._feed_apart(piece, False)
        # Parts are needed to count the reasoning, and for nothing else.
        if self._may_count or machine.has_thought:
            if is_plain:
                self._push(piece)
            tokens.decide(output.position, machine.waits)
            self._may_count = bool(self._pending)
        elif machine.waits or not machine.is_holding:
            tokens.forget()
        elif is_plain:
            self._push(piece)
        return self._take_events() if output.events else []

    def _take_events(self) -> list[Event]:
        events, self._output.events = self._output.events, []
        return events

    def _feed(self, piece: Piece, ends_by_token: bool) -> None:
        """Let the machine read a piece, and note the places of its tokens."""
        if self._num_to_skip or not self._apart.isdisjoint(piece.token_ids):
            self._feed_apart(piece, ends_by_token)
        else:
            self._machine.feed(piece.text)
            self._num_chars += len(piece.text)
            self._push(piece)
        if piece.finish_reason is not None:
            self._machine.finish()

    def _push(self, piece: Piece) -> None:
        """Note the places of a piece's tokens, none of which is a special one."""
        starts, shift = piece.starts, self._shift
        own = [start - shift for start in starts] if shift else starts
        self._tokens.push(piece.token_ids, own)

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
            values=piece.logprobs if is_whole else self._logprobs.take(len(token_ids)),
            place=None,
            prompt_logprobs=piece.prompt_logprobs,
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
            weight_versions=piece.weight_versions,
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
