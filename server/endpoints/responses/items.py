"""The items of a request's input, made into the messages of a chat.

What the model wrote in one turn is several items here and one message there: thoughts, texts and
calls up to the next item of another side become one assistant's message. The outputs of its calls
follow it, wherever in the input they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from server.endpoints.responses.schema import InputItem, ItemPart
from server.endpoints.responses.thoughts import unwrapped
from server.errors import bad_request
from server.schema.base import shown
from server.schema.messages import CalledFunction, ChatMessage, ContentPart, ToolCall

_SHOWN_IDS = 8


@dataclass
class _Turn:
    """One message, what belongs to it, and where each is in the request."""

    place: str
    message: ChatMessage
    outputs: list[tuple[ChatMessage, str]] = field(default_factory=list)

    def told(self) -> list[tuple[ChatMessage, str]]:
        """The messages of the turn with their places; none for thoughts that cannot be read."""
        message = self.message
        if message.content is None and not message.tool_calls:
            if message.reasoning_content is None:
                return []
            message.content = ""  # templates expect one where there are no calls
        return [(message, self.place), *self.outputs]


class InputMessages:
    """The messages of an input.

    Attributes:
        messages: the messages of a chat.
        places: where in the request each of them begins.
    """

    def __init__(self, instructions: str | None, items: Sequence[InputItem]) -> None:
        self._turns: list[_Turn] = []
        self._calls: dict[str, _Turn] = {}
        self._is_open = False
        if instructions is not None:
            system = ChatMessage.model_construct(role="system", content=instructions)
            self._turns.append(_Turn("instructions", system))
        for i, item in enumerate(items):
            self._add(item, f"input[{i}]")
        told = [pair for turn in self._turns for pair in turn.told()]
        self.messages = [message for message, _ in told]
        self.places = [place for _, place in told]

    def _add(self, item: InputItem, place: str) -> None:
        if item.type == "function_call_output":
            self._add_output(item, place)
        elif item.type == "message" and item.role != "assistant":
            message = ChatMessage.model_construct(role=item.role, content=_texts(item.content))
            self._turns.append(_Turn(place, message))
            self._is_open = False
        else:
            self._add_models(item, self._models_turn(place), place)

    def _models_turn(self, place: str) -> _Turn:
        """The turn of the model that goes on, or a new one."""
        if not self._is_open:
            self._turns.append(_Turn(place, ChatMessage.model_construct(role="assistant")))
            self._is_open = True
        return self._turns[-1]

    def _add_models(self, item: InputItem, turn: _Turn, place: str) -> None:
        message = turn.message
        if item.type == "reasoning":
            if thoughts := _thoughts(item):
                before = message.reasoning_content
                message.reasoning_content = f"{before}\n{thoughts}" if before else thoughts
        elif item.type == "message":
            if not isinstance(message.content, list):
                message.content = []
            message.content += _texts(item.content)
        else:
            call = _call(item, place)
            if message.tool_calls is None:
                message.tool_calls = []
            message.tool_calls.append(call)
            self._calls[call.id or ""] = turn

    def _add_output(self, item: InputItem, place: str) -> None:
        turn = self._calls.get(item.call_id or "")
        if turn is None:
            known = ", ".join(list(self._calls)[-_SHOWN_IDS:]) or "there is none"
            raise bad_request(
                f"{place}.call_id",
                f"{place}.call_id must be that of a function_call before it ({known}), "
                f"got {shown(item.call_id)}",
            )
        message = ChatMessage.model_construct(
            role="tool", tool_call_id=item.call_id, content=_texts(item.output)
        )
        turn.outputs.append((message, place))
        self._is_open = False


def _texts(parts: Sequence[ItemPart] | None) -> list[ContentPart]:
    return [ContentPart(type="text", text=part.text or part.refusal or "") for part in parts or ()]


def _thoughts(item: InputItem) -> str:
    """What the model thought: the content, else the summary, else what was wrapped."""
    for parts in (item.content, item.summary):
        if text := "\n".join(part.text or "" for part in parts or ()):
            return text
    return unwrapped(item.encrypted_content or "")


def _call(item: InputItem, place: str) -> ToolCall:
    raw, name = item.arguments or "{}", item.name or ""
    try:
        arguments = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        words = f"{place}.arguments must be JSON: {error}"
        raise bad_request(f"{place}.arguments", words) from None
    if not isinstance(arguments, dict):
        words = f"{place}.arguments must be the JSON of an object, got {shown(arguments)}"
        raise bad_request(f"{place}.arguments", words)
    function = CalledFunction(name=name, arguments=raw)
    return ToolCall(id=item.call_id, type="function", function=function)
