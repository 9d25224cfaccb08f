"""Events of one choice as a message, or as the deltas of one, in OpenAI's shapes."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from typing import Any

from server.conversation.parsing.output import Event, EventKind

_ID_CHARS = string.ascii_letters + string.digits
_NUM_HEX_BYTES = 12

Json = dict[str, Any]


class MessageWriter:
    """Writes the message of one choice.

    Args:
        reasoning_field: the name of the reasoning; None leaves it out.
        id_chars: the length of calls' ids; None for "call_" and 24 characters.
        max_calls: later calls are left out; None for no limit.
        holds_reasoning: deltas have the reasoning whole, once something else follows it.

    Attributes:
        num_calls: calls that have begun.
    """

    def __init__(
        self,
        reasoning_field: str | None,
        id_chars: int | None,
        max_calls: int | None,
        *,
        holds_reasoning: bool = False,
    ) -> None:
        self.num_calls = 0
        self._holds_reasoning = holds_reasoning
        self._held: list[str] = []
        self._reasoning_field = reasoning_field
        self._id_chars = id_chars
        self._max_calls = max_calls
        self._is_left_out = False

    def message(self, events: Sequence[Event]) -> Json:
        """The whole message that all events make."""
        content: list[str] = []
        reasoning: list[str] = []
        calls: list[Json] = []
        arguments: list[list[str]] = []
        for kind, text in events:
            if kind == "content":
                content.append(text)
            elif kind == "reasoning":
                reasoning.append(text)
            elif self._is_shown(kind):
                if kind == "call":
                    calls.append(self._head(text))
                    arguments.append([])
                else:
                    arguments[-1].append(text)
        message = message_of("".join(content))
        if reasoning and self._reasoning_field is not None:
            message[self._reasoning_field] = "".join(reasoning)
        if calls:
            message["content"] = message["content"] or None
            for call, texts in zip(calls, arguments, strict=True):
                call["function"]["arguments"] = "".join(texts)
            message["tool_calls"] = calls
        return message

    def deltas(self, events: Sequence[Event], *, is_last: bool = False) -> list[Json]:
        """The deltas that new events make, none of them empty.

        A call's first delta has its id and its name, and no delta has two parts of one call, which
        clients could not tell from two calls; nor has one text after a call.

        Args:
            is_last: no events follow.
        """
        deltas: list[Json] = []
        for kind, text in self._released(events, is_last) if self._holds_reasoning else events:
            if kind == "content" or kind == "reasoning":
                name = "content" if kind == "content" else self._reasoning_field
                if name is None:
                    continue
                if not deltas or "tool_calls" in deltas[-1]:
                    deltas.append({})
                deltas[-1][name] = deltas[-1].get(name, "") + text
            elif not self._is_shown(kind):
                continue
            elif kind == "call":
                if not deltas or "tool_calls" in deltas[-1]:
                    deltas.append({})
                head = {"index": self.num_calls} | self._head(text)
                deltas[-1]["tool_calls"] = [head]
            else:
                self._add_arguments(deltas, text)
        return deltas

    def _released(self, events: Sequence[Event], is_last: bool) -> list[Event]:
        """Events with the reasoning before each in one; the last of it is held unless all ends."""
        released: list[Event] = []
        for event in events:
            if event.kind == "reasoning":
                self._held.append(event.text)
            else:
                released += [*self._take_held(), event]
        return [*released, *self._take_held()] if is_last else released

    def _take_held(self) -> list[Event]:
        held, self._held = self._held, []
        return [Event("reasoning", "".join(held))] if held else []

    def frame(self, kind: EventKind) -> tuple[bytes, bytes] | None:
        """What is around the text of one event as a delta in JSON; None where it is left out.

        Args:
            kind: not `call`.
        """
        if kind == "content":
            return b'{"content":', b"}"
        if kind == "reasoning":
            name = self._reasoning_field
            return None if name is None else (b'{"%b":' % name.encode(), b"}")
        if self._is_left_out:
            return None
        head = b'{"tool_calls":[{"index":%d,"function":{"arguments":'
        return head % (self.num_calls - 1), b"}}]}"

    def _add_arguments(self, deltas: list[Json], text: str) -> None:
        last = deltas[-1].get("tool_calls") if deltas else None
        if last is not None and "id" not in last[0]:
            last[0]["function"]["arguments"] += text
            return
        part = {"index": self.num_calls - 1, "function": {"arguments": text}}
        deltas.append({"tool_calls": [part]})

    def _is_shown(self, kind: str) -> bool:
        """Whether an event of a call is shown; all of those beyond the limit are not."""
        if kind == "call":
            self._is_left_out = self.num_calls == self._max_calls
        return not self._is_left_out

    def _head(self, name: str) -> Json:
        """A call at its beginning."""
        self.num_calls += 1
        call_id = draw_call_id(self._id_chars)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}


def message_of(content: str) -> Json:
    """The message of a choice that has content alone."""
    return {"role": "assistant", "content": content, "refusal": None}


def draw_call_id(num_chars: int | None, prefix: str = "call_") -> str:
    """A new id of a call: so many letters and digits, or with None the prefix and 24 characters."""
    if num_chars is None:
        return f"{prefix}{secrets.token_hex(_NUM_HEX_BYTES)}"
    return "".join(secrets.choice(_ID_CHARS) for _ in range(num_chars))
