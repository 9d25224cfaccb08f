"""What a choice says as output items, each step as events of a stream."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from server.conversation.parsing.message import draw_call_id
from server.conversation.parsing.output import Event
from server.endpoints.responses.custom import InputReader
from server.endpoints.responses.thoughts import wrapped
from server.response_store.records import IN_PROGRESS

Json = dict[str, Any]
COMPLETED, INCOMPLETE = "completed", "incomplete"


class OpenItem(ABC):
    """An output item that grows.

    Args:
        index: its number in the output.
    """

    prefix: str

    def __init__(self, index: int) -> None:
        self._index = index
        self._id = f"{self.prefix}_{secrets.token_hex(16)}"
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """What it says so far."""
        return "".join(self._texts)

    def begin(self) -> list[Json]:
        """The events of its beginning."""
        item = self.item(IN_PROGRESS)
        return [self._whole("added", item), *self._part_added()]

    def add(self, text: str, entries: list[Json]) -> list[Json]:
        """Let it say more; returns the events."""
        self._texts.append(text)
        return [self._delta(text, entries)]

    def end(self, status: str) -> list[Json]:
        """The events of its end."""
        parts = self._part_done()
        return [*parts, self._whole("done", self.item(status))]

    def event(self, kind: str, **fields: Any) -> Json:
        """An event of this item."""
        fixed = {"type": f"response.{kind}", "item_id": self._id, "output_index": self._index}
        return fixed | fields

    def _whole(self, what: str, item: Json) -> Json:
        return {
            "type": f"response.output_item.{what}",
            "output_index": self._index,
            "item": item,
        }

    @abstractmethod
    def item(self, status: str) -> Json:
        """The item as it is now."""

    @abstractmethod
    def _delta(self, text: str, entries: list[Json]) -> Json: ...

    def _part_added(self) -> list[Json]:
        return []

    @abstractmethod
    def _part_done(self) -> list[Json]: ...


class MessageItem(OpenItem):
    """A message with one text."""

    prefix = "msg"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._entries: list[Json] = []

    def _part(self) -> Json:
        entries = list(self._entries)
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": entries}

    def item(self, status: str) -> Json:
        """The item as it is now."""
        content = [] if status == IN_PROGRESS else [self._part()]
        fixed = {"id": self._id, "type": "message", "role": "assistant"}
        return {**fixed, "status": status, "content": content}

    def _delta(self, text: str, entries: list[Json]) -> Json:
        self._entries += entries
        return self.event("output_text.delta", content_index=0, delta=text, logprobs=entries)

    def _part_added(self) -> list[Json]:
        return [self.event("content_part.added", content_index=0, part=self._part())]

    def _part_done(self) -> list[Json]:
        part = self._part()
        text = {"text": part["text"], "logprobs": part["logprobs"]}
        return [
            self.event("output_text.done", content_index=0, **text),
            self.event("content_part.done", content_index=0, part=part),
        ]

    def add_entries(self, entries: list[Json]) -> None:
        """Add logprobs that came after their text."""
        self._entries += entries


class ReasoningItem(OpenItem):
    """What the model thought, as the item's content or as its summary.

    Args:
        encrypts: it has `encrypted_content`.
    """

    prefix = "rs"

    def __init__(self, index: int, *, as_summary: bool, encrypts: bool) -> None:
        super().__init__(index)
        self._encrypts = encrypts
        kind = "reasoning_summary" if as_summary else "reasoning"
        self._text_event = f"{kind}_text"
        self._part_event = f"{kind}_part" if as_summary else "content_part"
        self._part_type = "summary_text" if as_summary else "reasoning_text"
        self._field = "summary" if as_summary else "content"
        self._place = {"summary_index" if as_summary else "content_index": 0}

    def _part(self) -> Json:
        return {"type": self._part_type, "text": self.text}

    def item(self, status: str) -> Json:
        """The item as it is now."""
        parts = [] if status == IN_PROGRESS else [self._part()]
        item: Json = {"id": self._id, "type": "reasoning", "status": status, "summary": []}
        item[self._field] = parts
        if self._encrypts:
            item["encrypted_content"] = wrapped(self.text)
        return item

    def _delta(self, text: str, entries: list[Json]) -> Json:
        return self.event(f"{self._text_event}.delta", delta=text, **self._place)

    def _part_added(self) -> list[Json]:
        return [self.event(f"{self._part_event}.added", part=self._part(), **self._place)]

    def _part_done(self) -> list[Json]:
        return [
            self.event(f"{self._text_event}.done", text=self.text, **self._place),
            self.event(f"{self._part_event}.done", part=self._part(), **self._place),
        ]


class CallItem(OpenItem):
    """A call of a function."""

    prefix = "fc"

    def __init__(self, index: int, name: str, call_id: str) -> None:
        super().__init__(index)
        self._name = name
        self._call_id = call_id

    def item(self, status: str) -> Json:
        """The item as it is now."""
        named = {"call_id": self._call_id, "name": self._name, "arguments": self.text}
        return {"id": self._id, "type": "function_call", "status": status, **named}

    def _delta(self, text: str, entries: list[Json]) -> Json:
        return self.event("function_call_arguments.delta", delta=text)

    def _part_done(self) -> list[Json]:
        done = {"name": self._name, "arguments": self.text}
        return [self.event("function_call_arguments.done", **done)]


class CustomCallItem(OpenItem):
    """A call of a custom tool, whose text is read out of the arguments of a function's call."""

    prefix = "ctc"

    def __init__(self, index: int, name: str, call_id: str) -> None:
        super().__init__(index)
        self._name = name
        self._call_id = call_id
        self._reader = InputReader()

    def item(self, status: str) -> Json:
        """The item as it is now."""
        named = {"call_id": self._call_id, "name": self._name, "input": self.text}
        return {"id": self._id, "type": "custom_tool_call", "status": status, **named}

    def add(self, text: str, entries: list[Json]) -> list[Json]:
        """Let the arguments go on; returns the events, none where they add nothing to the text."""
        own = self._reader.feed(text)
        return super().add(own, entries) if own else []

    def _delta(self, text: str, entries: list[Json]) -> Json:
        return self.event("custom_tool_call_input.delta", delta=text)

    def _part_done(self) -> list[Json]:
        rest = self._reader.end()
        last = super().add(rest, []) if rest else []
        return [*last, self.event("custom_tool_call_input.done", input=self.text)]


class OutputItems:
    """Makes the output of one response.

    Args:
        custom: names of the tools that are called with a text.
        as_summary: thoughts are in summaries.
        encrypts: thoughts have `encrypted_content`.
        has_logprobs: logprobs come with the texts.
        id_chars: the length of calls' ids; None for "call_" and 24 characters.

    Attributes:
        items: the items that have ended.
    """

    def __init__(
        self,
        *,
        custom: Collection[str],
        as_summary: bool,
        encrypts: bool,
        has_logprobs: bool,
        id_chars: int | None,
    ) -> None:
        self.items: list[Json] = []
        self._custom = custom
        self._as_summary = as_summary
        self._encrypts = encrypts
        self._has_logprobs = has_logprobs
        self._id_chars = id_chars
        self._open: OpenItem | None = None
        self._entries: deque[Json] = deque()
        self._num_bytes_owed = 0

    def add(self, events: Sequence[Event], entries: list[Json]) -> list[Json]:
        """Add what the choice says next; returns the events of a stream."""
        self._entries += entries
        sent: list[Json] = []
        for kind, text in events:
            if kind == "call":
                sent += self.end(COMPLETED)
                made = CustomCallItem if text in self._custom else CallItem
                sent += self._begin(made(len(self.items), text, draw_call_id(self._id_chars)))
                continue
            if kind == "content" and not isinstance(self._open, MessageItem):
                sent += self.end(COMPLETED)
                sent += self._begin(MessageItem(len(self.items)))
            elif kind == "reasoning" and not isinstance(self._open, ReasoningItem):
                sent += self.end(COMPLETED)
                sent += self._begin(self._reasoning())
            assert self._open is not None
            own = self._entries_of(text) if kind == "content" and self._has_logprobs else []
            sent += self._open.add(text, own)
        return sent

    def _reasoning(self) -> ReasoningItem:
        index = len(self.items)
        return ReasoningItem(index, as_summary=self._as_summary, encrypts=self._encrypts)

    def _begin(self, item: OpenItem) -> list[Json]:
        self._open = item
        return item.begin()

    def _entries_of(self, text: str) -> list[Json]:
        """Logprobs of the tokens whose bytes are up to the end of this text, as far as known."""
        self._num_bytes_owed += len(text.encode())
        found = []
        while self._entries and self._num_bytes_owed > 0:
            entry = self._entries.popleft()
            self._num_bytes_owed -= len(entry["bytes"])
            found.append(entry)
        return found

    def end(self, status: str) -> list[Json]:
        """End the item that is open, if one is."""
        if self._open is None:
            return []
        if isinstance(self._open, MessageItem) and self._entries:
            self._open.add_entries(self._entries_of(""))
        events = self._open.end(status)
        self.items.append(events[-1]["item"])
        self._open = None
        return events

    def finish(self, status: str) -> list[Json]:
        """End the item that is open, once the choice has ended."""
        if isinstance(self._open, MessageItem):
            self._open.add_entries(list(self._entries))
            self._entries.clear()
        return self.end(status)
