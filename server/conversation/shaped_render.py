"""Replies to conversations in other shapes than that of a chat.

A shape gets everything in order and gives out the events of its stream. The whole reply is what the
same steps add up to, so a joined stream is the plain reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Protocol

import orjson

from server.conversation.parsed_render import chat_renderer
from server.conversation.parsing.output import Event
from server.conversation.prompt import ConversationPrompt
from server.errors import ApiError
from server.generation.choice import Piece, ReplyChoice
from server.generation.generation import Generation
from server.generation.prepare import PreparedRequest
from server.generation.render import Renderer

Json = dict[str, Any]


class ReplyShape(Protocol):
    """Writes the one choice of a request; what its methods return are events of a stream.

    Usage is a chat's; `extras` are fields of the whole reply that no other endpoint has.
    """

    def begin(self, usage: Json) -> list[Json]:
        """Begin a stream."""
        ...

    def add(self, events: Sequence[Event], entries: list[Json]) -> list[Json]:
        """Add what the choice says next, and logprobs of tokens of its content."""
        ...

    def finish(self, finish_reason: str, stop_reason: str | int | None) -> list[Json]:
        """End what is open, once the choice has ended."""
        ...

    def end(self, usage: Json, extras: Json) -> list[Json]:
        """End a stream."""
        ...

    def failure(self, error: ApiError) -> list[Json]:
        """End a stream that failed."""
        ...

    def reply(self, usage: Json, extras: Json) -> Json:
        """Make the whole reply, once it is finished."""
        ...


class ShapedRenderer(Renderer):
    """Lets a shape write the one choice of a request.

    Args:
        prompt: the conversation that the choice continues.

    Attributes:
        token_ids: the tokens that were generated, as far as they were passed on.
    """

    def __init__(
        self, prepared: PreparedRequest, prompt: ConversationPrompt, shape: ReplyShape
    ) -> None:
        super().__init__(prepared)
        self.shape = shape
        self.token_ids: list[int] = []
        self._chat = chat_renderer(prepared, prompt, reasoning_field="reasoning_content")
        self._num_calls_left = prompt.max_calls
        self._is_left_out = False

    def steps(self, piece: Piece) -> list[Json]:
        """Pass the shape the next piece; returns the events of a stream."""
        self.token_ids += piece.token_ids
        content = self._chat.content(piece)
        entries: list[Json] = orjson.loads(f"[{content.entries}]") if content.entries else []
        events = self.shape.add(merged(filter(self._is_shown, content.events)), entries)
        if piece.finish_reason is not None:
            events += self.shape.finish(piece.finish_reason, piece.stop_reason)
        return events

    def _is_shown(self, event: Event) -> bool:
        """Whether an event is shown; those of calls beyond the limit are not."""
        if event.kind == "call" and self._num_calls_left is not None:
            self._is_left_out = self._num_calls_left == 0
            self._num_calls_left -= not self._is_left_out
        return event.kind in ("content", "reasoning") or not self._is_left_out

    def write_ahead(self, choices: list[ReplyChoice]) -> None:
        """Pass on what these choices can give out."""
        for choice in choices:
            if (piece := choice.take()) is not None:
                self.steps(piece)

    def reply(self, choices: list[ReplyChoice], usage: Json, metrics: Json | None) -> bytes:
        """Write the whole reply, once the choice has ended."""
        self.write_ahead(choices)
        return orjson.dumps(self.shape.reply(self.usage(usage), self.extras(metrics)))

    def usage(self, usage: Json) -> Json:
        """The usage of the request so far, as in a chat."""
        return self._chat.usage(usage)

    def extras(self, metrics: Json | None) -> Json:
        """Fields of the whole reply that no other endpoint has, where there are any."""
        extras = {"metrics": metrics, "ignored_keywords": self._prepared.ignored_keywords}
        return {name: value for name, value in extras.items() if value}


class EventWriter:
    """Writes a stream of named events, which ends with the last of them."""

    begins_big = False

    def __init__(self, generation: Generation, renderer: ShapedRenderer) -> None:
        self._generation = generation
        self._renderer = renderer
        self._shape = renderer.shape
        self._has_begun = False

    def _usage(self) -> Json:
        return self._renderer.usage(self._generation.tally.usage())

    def chunks(self, changed: list[ReplyChoice]) -> bytes:
        """Write events of what the choice can give out now; there may be none."""
        events: list[Json] = []
        if not self._has_begun:
            self._has_begun = True
            events = self._shape.begin(self._usage())
        for choice in changed:
            if (piece := choice.take()) is not None:
                events += self._renderer.steps(piece)
        return frames(events)

    def end(self) -> bytes:
        """Write the last events."""
        extras = self._renderer.extras(self._generation.tally.draft_metrics())
        return frames(self._shape.end(self._usage(), extras))

    def failure(self, error: ApiError) -> bytes:
        """Write the last events of a stream that failed."""
        return frames(self._shape.failure(error))


def merged(events: Sequence[Event] | filter[Event]) -> list[Event]:
    """The same events with those that follow one of their kind joined to it; calls stay apart."""
    found: list[Event] = []
    for kind, run in groupby(events, key=lambda event: event.kind):
        if kind == "call":
            found += run
        else:
            found.append(Event(kind, "".join(event.text for event in run)))
    return found


def frames(events: list[Json]) -> bytes:
    """Events as frames, each named by its type."""
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
        for event in events
    )
