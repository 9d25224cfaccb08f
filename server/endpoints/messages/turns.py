"""Messages of blocks, made into the messages of a conversation.

A user's message with results of tools becomes a tool's message for each result, and a user's
message of the text after them.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.conversation.messages import template_call
from server.conversation.template_rendering import Message
from server.endpoints.messages.schema import Block, TextBlock, Turn
from server.errors import bad_request
from server.schema.base import shown

_SHOWN_IDS = 8
_ALLOWED = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}
"""Types of blocks that a role may write."""


class TurnMessages:
    """The messages of a conversation.

    Attributes:
        messages: as templates take them.
        continues: the last message is the beginning of the reply.
    """

    def __init__(self, system: Sequence[TextBlock] | None, turns: Sequence[Turn]) -> None:
        self.messages: list[Message] = []
        self._call_ids: dict[str, None] = {}  # in their order
        if system:
            self.messages.append({"role": "system", "content": _text(system)})
        for i, turn in enumerate(turns):
            self._add(turn, f"messages[{i}]")
        self.continues = turns[-1].role == "assistant"
        if self.continues and "tool_calls" in self.messages[-1]:
            words = "must be followed by the results of its tools"
            raise bad_request("messages", f"messages[{len(turns) - 1}] {words}")

    def _add(self, turn: Turn, place: str) -> None:
        for i, block in enumerate(turn.content):
            if block.type not in _ALLOWED[turn.role]:
                field, types = f"{place}.content[{i}].type", ", ".join(_ALLOWED[turn.role])
                words = f"must be one of {types} in a message of the {turn.role}"
                raise bad_request(field, f"{field} {words}, got {shown(block.type)}")
        if turn.role == "assistant":
            self._add_reply(turn.content)
            return
        results = [i for i, block in enumerate(turn.content) if block.type == "tool_result"]
        for i in results:
            self._add_result(turn.content[i], f"{place}.content[{i}]")
        if len(results) < len(turn.content) or not turn.content:
            self.messages.append({"role": turn.role, "content": _text(turn.content)})
        if turn.role == "user":
            self._call_ids = {}

    def _add_reply(self, blocks: Sequence[Block]) -> None:
        uses = [block for block in blocks if block.type == "tool_use"]
        message: Message = {"role": "assistant"}
        if not uses or any(block.text is not None for block in blocks):
            message["content"] = _text(blocks)
        if thoughts := "\n".join(block.thinking for block in blocks if block.thinking):
            message["reasoning_content"] = thoughts
        if uses:
            calls = [template_call(use.name or "", use.input or {}, use.id) for use in uses]
            message["tool_calls"] = calls
        self.messages.append(message)
        self._call_ids = {use.id or "": None for use in uses}

    def _add_result(self, block: Block, place: str) -> None:
        """Add a result; those of one message come before its other blocks."""
        if block.tool_use_id not in self._call_ids:
            known = ", ".join(list(self._call_ids)[:_SHOWN_IDS]) or "there is none"
            field, given = f"{place}.tool_use_id", shown(block.tool_use_id)
            words = f"must be the id of a tool_use in the message before it ({known}), got {given}"
            raise bad_request(field, f"{field} {words}")
        text = _text(block.content or ())
        result = {"role": "tool", "content": text, "tool_call_id": block.tool_use_id}
        self.messages.append(result)


def _text(blocks: Sequence[Block | TextBlock]) -> str:
    return "\n".join(block.text for block in blocks if block.text is not None)
