"""Messages of blocks, made into the messages of a chat.

A user's message with results of tools becomes a tool's message for each result, and a user's
message of the text behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.endpoints.messages.schema import Block, TextBlock, Turn
from server.errors import bad_request
from server.schema.base import shown
from server.schema.messages import CalledFunction, ChatMessage, ContentPart, ToolCall

_SHOWN_IDS = 8
_ALLOWED = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}
"""Types of blocks that a role may write."""


class ChatMessages:
    """The messages of a conversation.

    Attributes:
        messages: the messages of a chat.
        places: where in the request each of them is.
        continues: the last message is the beginning of the reply.
    """

    def __init__(self, system: Sequence[TextBlock] | None, turns: Sequence[Turn]) -> None:
        self.messages: list[ChatMessage] = []
        self.places: list[str] = []
        self._call_ids: dict[str, None] = {}  # in their order
        if system:
            self._append("system", "system", _texts(system))
        for i, turn in enumerate(turns):
            self._add(turn, f"messages[{i}]")
        last = self.messages[-1]
        self.continues = turns[-1].role == "assistant"
        if self.continues and last.tool_calls:
            words = "must be followed by the results of its tools"
            raise bad_request("messages", f"messages[{len(turns) - 1}] {words}")

    def _append(self, place: str, role: str, content: list[ContentPart] | None) -> ChatMessage:
        message = ChatMessage.model_construct(role=role, content=content)
        self.messages.append(message)
        self.places.append(place)
        return message

    def _add(self, turn: Turn, place: str) -> None:
        for i, block in enumerate(turn.content):
            if block.type not in _ALLOWED[turn.role]:
                field, types = f"{place}.content[{i}].type", ", ".join(_ALLOWED[turn.role])
                words = f"must be one of {types} in a message of the {turn.role}"
                raise bad_request(field, f"{field} {words}, got {shown(block.type)}")
        if turn.role == "assistant":
            self._add_reply(turn.content, place)
            return
        results = [i for i, block in enumerate(turn.content) if block.type == "tool_result"]
        for i in results:
            self._add_result(turn.content[i], f"{place}.content[{i}]")
        if len(results) < len(turn.content) or not turn.content:
            self._append(place, turn.role, _texts(turn.content))
        if turn.role == "user":
            self._call_ids = {}

    def _add_reply(self, blocks: Sequence[Block], place: str) -> None:
        calls = [_call(block) for block in blocks if block.type == "tool_use"]
        texts = _texts(blocks)
        message = self._append(place, "assistant", texts if texts or not calls else None)
        thoughts = [block.thinking for block in blocks if block.thinking]
        message.reasoning_content = "\n".join(thoughts) or None
        message.tool_calls = calls or None
        self._call_ids = {call.id or "": None for call in calls}

    def _add_result(self, block: Block, place: str) -> None:
        """Add a result; those of one message come before its other blocks."""
        if block.tool_use_id not in self._call_ids:
            known = ", ".join(list(self._call_ids)[:_SHOWN_IDS]) or "there is none"
            field, given = f"{place}.tool_use_id", shown(block.tool_use_id)
            words = f"must be the id of a tool_use in the message before it ({known}), got {given}"
            raise bad_request(field, f"{field} {words}")
        message = self._append(place, "tool", _texts(block.content or ()))
        message.tool_call_id = block.tool_use_id


def _texts(blocks: Sequence[Block | TextBlock]) -> list[ContentPart]:
    return [
        ContentPart.model_construct(type="text", text=block.text)
        for block in blocks
        if block.text is not None
    ]


def _call(block: Block) -> ToolCall:
    function = CalledFunction(name=block.name or "", arguments=block.input or {})
    return ToolCall(id=block.id, type="function", function=function)
