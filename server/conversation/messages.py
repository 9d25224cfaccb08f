"""Messages as clients write them, made into what templates are written for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from pydantic_core import from_json

from server.conversation.template_rendering import Message
from server.errors import bad_request
from server.schema.base import shown
from server.schema.messages import ChatMessage, ContentPart, ToolCall

_TOOL, _OLDER_TOOL = "tool", "function"
"""OpenAI's names of the role that results of calls have; templates know the newer one."""
_PLAIN_ROLES = frozenset(("system", "user", "assistant"))
_PLAIN_FIELDS = {"role", "content"}


def template_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """The messages as templates take them; raises `ApiError`.

    Text parts are joined by line breaks, calls' arguments are objects, and what is null is left
    out. A tool's message follows the call that it answers.
    """
    found = []
    for i, message in enumerate(messages):
        if message.__pydantic_fields_set__ == _PLAIN_FIELDS:
            role, content = message.role, message.content
            if role in _PLAIN_ROLES and type(content) is str:  # most messages
                found.append({"role": role, "content": content})
                continue
        found.append(_template_message(message, i))
    _check_answers(messages)
    return found


def _check_answers(messages: Sequence[ChatMessage]) -> None:
    """Raise a 400 for a tool's message that answers none of the calls before it."""
    if _TOOL not in [message.role for message in messages]:
        return
    calls: list[ToolCall] = []
    known: dict[str, None] = {}  # in their order
    for i, message in enumerate(messages):
        if message.role != _TOOL:
            calls = message.calls
            known = {call.id: None for call in calls if call.id is not None}
            continue
        if not calls:
            raise bad_request(
                f"messages[{i}].role",
                f"messages[{i}].role is tool, but no assistant's message with tool_calls is before "
                "it",
            )
        if known and message.tool_call_id not in known:
            field, given = f"messages[{i}].tool_call_id", shown(message.tool_call_id)
            ids = ", ".join(list(known)[:8])
            raise bad_request(
                field, f"{field} must be the id of a call before it ({ids}), got {given}"
            )


def _template_message(message: ChatMessage, i: int) -> Message:
    role, where = message.role, f"messages[{i}]"
    found: Message = {"role": _TOOL if role == _OLDER_TOOL else role}
    content, thoughts = content_text(message.content), _thoughts(message, where)
    if content is None and message.refusal is not None:
        content = message.refusal
    if content is not None:
        found["content"] = content
    elif role != "assistant":
        raise bad_request(f"{where}.content", f"{where}.content must be a text, got null")
    for name, value in (("name", message.name), ("tool_call_id", message.tool_call_id)):
        if value is not None:
            found[name] = value
    if (reasoning := _reasoning(message, where, thoughts)) is not None:
        found["reasoning_content"] = reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{k}].function")
            for k, call in enumerate(message.tool_calls)
        ]
    elif message.function_call is not None:
        found["tool_calls"] = [_call(message.calls[0], f"{where}.function_call")]
    return found


def content_text(content: str | list[ContentPart] | None) -> str | None:
    """A message's content as one text; parts of thoughts are none of it."""
    if not isinstance(content, list):
        return content
    texts = [part.words or "" for part in content if not part.is_thought]
    return "\n".join(texts) if texts or not content else None


def _thoughts(message: ChatMessage, where: str) -> str | None:
    """What an assistant's parts of thoughts say; raises `ApiError` for those of others."""
    content = message.content
    parts = [part for part in content if part.is_thought] if isinstance(content, list) else []
    if parts and message.role != "assistant":
        words = f"holds a part of type {shown(parts[0].type)}, which only an assistant's may"
        raise bad_request(f"{where}.content", f"{where}.content {words}")
    return "\n".join(part.words or "" for part in parts) if parts else None


def _reasoning(message: ChatMessage, where: str, thoughts: str | None) -> str | None:
    """What the assistant thought: under whichever of its two names, or in parts of the content."""
    first, second = message.reasoning_content, message.reasoning
    if first is not None and second is not None and first != second:
        raise bad_request(
            f"{where}.reasoning",
            f"{where}.reasoning must equal reasoning_content, which is another text",
        )
    named = second if first is None else first
    return thoughts if named is None else named


def _call(call: ToolCall, where: str) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        arguments = call_arguments(arguments, f"{where}.arguments")
    return template_call(call.function.name, arguments, call.id)


def call_arguments(text: str, field: str) -> Any:
    """The arguments of a call that a client sends back, as far as they came; raises `ApiError`.

    A call that a limit or a fault of the model's cut off must not end its conversation.
    """
    try:
        return orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        try:
            return from_json(text, allow_partial="trailing-strings", allow_inf_nan=False)
        except ValueError:
            raise bad_request(field, f"{field} must be JSON: {error}") from None


def template_call(name: str, arguments: Any, call_id: str | None) -> dict[str, Any]:
    """A call of an assistant's message as templates take it."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return call if call_id is None else call | {"id": call_id}
