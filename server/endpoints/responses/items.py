"""The items of a request's input, made into the messages of a conversation.

What the model wrote in one turn is several items here and one message there: thoughts, texts and
calls up to the next item of another side become one assistant's message. The outputs of its calls
follow it, wherever in the input they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from server.conversation.messages import call_arguments, template_call
from server.conversation.template_rendering import Message
from server.endpoints.responses.custom import as_arguments
from server.endpoints.responses.items_schema import HOSTED, OUTPUTS, InputItem, ItemPart
from server.endpoints.responses.thoughts import unwrapped
from server.errors import bad_request
from server.schema.base import shown

_SHOWN_IDS = 8


@dataclass
class _Turn:
    """One message as it grows, and the outputs of its calls.

    Attributes:
        texts: joined they are the content; None for none.
    """

    role: str
    texts: list[str] | None = None
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[Message] = field(default_factory=list)

    def messages(self) -> list[Message]:
        """The messages of the turn; none for thoughts that cannot be read."""
        if self.texts is None and not self.calls:
            if not self.thoughts:
                return []
            self.texts = []  # templates expect a content where there are no calls
        message: Message = {"role": self.role}
        if self.texts is not None:
            message["content"] = "\n".join(self.texts)
        if self.thoughts:
            message["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return [message, *self.outputs]


def input_messages(
    instructions: str | None, items: Sequence[InputItem], num_past: int = 0
) -> list[Message]:
    """The messages of an input; raises `ApiError`.

    Args:
        num_past: so many of the items are those of an earlier response.
    """
    turns = _Turns()
    if instructions is not None:
        turns.begin("system").texts = [instructions]
    for i, item in enumerate(items):
        turns.add(item, f"input[{i - num_past}]" if i >= num_past else "previous_response_id")
    return turns.messages()


class _Turns:
    """The turns of a conversation as its items come."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []
        self._calls: dict[str, _Turn] = {}
        self._is_open = False

    def messages(self) -> list[Message]:
        return [message for turn in self._turns for message in turn.messages()]

    def begin(self, role: str) -> _Turn:
        self._turns.append(_Turn(role))
        self._is_open = role == "assistant"
        return self._turns[-1]

    def add(self, item: InputItem, place: str) -> None:
        if item.type in HOSTED:
            return
        if item.type in OUTPUTS:
            self._add_output(item, place)
        elif item.type == "message" and item.role != "assistant":
            self.begin(item.role or "user").texts = _texts(item.content)
        else:
            turn = self._turns[-1] if self._is_open else self.begin("assistant")
            self._add_models(item, turn, place)

    def _add_models(self, item: InputItem, turn: _Turn, place: str) -> None:
        if item.type == "reasoning":
            if thoughts := _thoughts(item):
                turn.thoughts.append(thoughts)
        elif item.type == "message":
            turn.texts = (turn.texts or []) + _texts(item.content)
        else:
            turn.calls.append(_call(item, place))
            self._calls[item.call_id or ""] = turn

    def _add_output(self, item: InputItem, place: str) -> None:
        turn = self._calls.get(item.call_id or "")
        if turn is None:
            known = ", ".join(list(self._calls)[-_SHOWN_IDS:]) or "there is none"
            raise bad_request(
                f"{place}.call_id",
                f"{place}.call_id must be that of a call before it ({known}), "
                f"got {shown(item.call_id)}",
            )
        text = "\n".join(_texts(item.output))
        turn.outputs.append({"role": "tool", "content": text, "tool_call_id": item.call_id})
        self._is_open = False


def _texts(parts: Sequence[ItemPart] | None) -> list[str]:
    return [part.text or part.refusal or "" for part in parts or ()]


def _thoughts(item: InputItem) -> str:
    """What the model thought: the content, else the summary, else what was wrapped."""
    for parts in (item.content, item.summary):
        if text := "\n".join(part.text or "" for part in parts or ()):
            return text
    return unwrapped(item.encrypted_content or "")


def _call(item: InputItem, place: str) -> dict[str, Any]:
    if item.type == "custom_tool_call":
        return template_call(item.name or "", as_arguments(item.input or ""), item.call_id)
    if item.type == "local_shell_call":
        return template_call("local_shell", item.action or {}, item.call_id)
    arguments = call_arguments(item.arguments or "", f"{place}.arguments")
    if not isinstance(arguments, dict):
        words = f"{place}.arguments must be the JSON of an object, got {shown(arguments)}"
        raise bad_request(f"{place}.arguments", words)
    return template_call(item.name or "", arguments, item.call_id)
