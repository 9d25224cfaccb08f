"""A request's fields as those of a chat."""

from __future__ import annotations

from typing import Any

from server.conversation.renaming import renamed
from server.endpoints.chat.schema import ChatRequest
from server.endpoints.messages.schema import (
    ClientTool,
    ClientToolChoice,
    CountTokensRequest,
    MessagesRequest,
    ThinkingOptions,
)
from server.endpoints.messages.turns import ChatMessages
from server.errors import ApiError, bad_request
from server.schema.structured import ResponseFormat, SchemaFormat
from server.schema.tools import NamedFunction, NamedTool, Tool, ToolFunction

_SAME = ("temperature", "top_p", "top_k", "seed", "stream", "priority", "request_id")
"""Fields that mean the same in a chat."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_THINKING = ("enable_thinking", "thinking")
"""Names under which templates of thinking models ask whether to think."""
_RENAMING = (
    (r"(tools\[\d+\])\.function\.parameters\b", r"\1.input_schema"),
    (r"(tools\[\d+\])\.function\b", r"\1"),
    (r"tool_choice\.function\b", "tool_choice"),
    (r"response_format\.json_schema\b", "output_config.format"),
    (r"reasoning_effort\b", "output_config.effort"),
    (r"thinking_token_budget\b", "thinking.budget_tokens"),
)


class ChatOfMessages:
    """The chat that a request asks for.

    Attributes:
        body: the chat's request.
        shows_thoughts: the reply has thinking blocks.
    """

    def __init__(self, body: CountTokensRequest) -> None:
        conversation = ChatMessages(body.system, body.messages)
        self._places = conversation.places
        thinking, choice, output = body.thinking, body.tool_choice, body.output_config
        self.shows_thoughts = not thinking or (
            thinking.type != "disabled" and thinking.display != "omitted"
        )
        fields: dict[str, Any] = {}
        if isinstance(body, MessagesRequest):
            _check_not_stored(body)
            fields = {name: getattr(body, name) for name in _SAME}
            fields["stop"] = body.stop_sequences
            fields["max_tokens"] = None if body.max_tokens else 0
        self.body = ChatRequest.model_construct(
            model=body.model,
            messages=conversation.messages,
            continue_final_message=conversation.continues,
            tools=None if body.tools is None else [_tool(tool) for tool in body.tools],
            tool_choice=_choice(choice),
            parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
            chat_template_kwargs=_variables(thinking) | (body.chat_template_kwargs or {}),
            reasoning_effort=output.effort if output else None,
            thinking_token_budget=thinking.budget_tokens if thinking else None,
            response_format=_format(body),
            **fields,
        )

    def told(self, error: ApiError) -> ApiError:
        """The chat's error as one of the request's."""
        return renamed(error, _RENAMING, self._places, "messages")


def _check_not_stored(body: MessagesRequest) -> None:
    """Refuse a conversation that the server is to hold; clients know the code and send it whole."""
    if body.thread is not None:
        raise bad_request(
            "thread",
            "thread must be null: no conversation is stored, so send the whole of it each time",
            "thread_unsupported_request",
        )


def _tool(tool: ClientTool) -> Tool:
    function = ToolFunction.model_construct(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def _choice(choice: ClientToolChoice | None) -> str | NamedTool | None:
    if choice is None:
        return None
    if choice.type == "tool":
        return NamedTool(type="function", function=NamedFunction(name=choice.name or ""))
    return _CHOICES[choice.type]


def _variables(thinking: ThinkingOptions | None) -> dict[str, Any]:
    return {} if thinking is None else dict.fromkeys(_THINKING, thinking.type != "disabled")


def _format(body: CountTokensRequest) -> ResponseFormat | None:
    wanted = body.output_config and body.output_config.format
    if not wanted:
        return None
    schema = SchemaFormat.model_construct(schema_=wanted.schema_)
    return ResponseFormat.model_construct(type="json_schema", json_schema=schema)
