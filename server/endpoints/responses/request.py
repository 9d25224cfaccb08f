"""A request's fields as those of a chat."""

from __future__ import annotations

from collections.abc import Sequence

from server.conversation.renaming import renamed
from server.endpoints.chat.schema import ChatRequest
from server.endpoints.responses.items import InputMessages
from server.endpoints.responses.schema import (
    LOGPROBS,
    FunctionChoice,
    FunctionTool,
    ResponsesRequest,
    TextOptions,
)
from server.errors import ApiError
from server.schema.structured import ResponseFormat, SchemaFormat
from server.schema.tools import NamedFunction, NamedTool, Tool, ToolFunction

_SAME = (
    *("model", "temperature", "top_p", "top_k", "seed", "parallel_tool_calls", "stream"),
    *("chat_template_kwargs", "priority", "request_id"),
)
"""Fields that mean the same in a chat."""
_RENAMING = (
    (r"max_tokens\b", "max_output_tokens"),
    (r"(tools\[\d+\])\.function\b", r"\1"),
    (r"tool_choice\.function\b", "tool_choice"),
    (r"response_format\.json_schema\b", "text.format"),
    (r"response_format\b", "text.format"),
    (r"reasoning_effort\b", "reasoning.effort"),
)


class ChatOfResponse:
    """The chat that a request asks for.

    Attributes:
        body: the chat's request.
    """

    def __init__(self, body: ResponsesRequest) -> None:
        conversation = InputMessages(body.instructions, body.input)
        self._places: Sequence[str] = conversation.places
        fields = {name: getattr(body, name) for name in _SAME}
        shows_logprobs = LOGPROBS in (body.include or ()) or body.top_logprobs
        self.body = ChatRequest.model_construct(
            messages=conversation.messages,
            logprobs=bool(shows_logprobs),
            top_logprobs=(body.top_logprobs or 0) if shows_logprobs else None,
            tools=[_tool(tool) for tool in body.tools] if body.tools is not None else None,
            tool_choice=_choice(body.tool_choice),
            response_format=_format(body.text),
            reasoning_effort=body.reasoning.effort if body.reasoning else None,
            **fields,
        )

    def told(self, error: ApiError) -> ApiError:
        """The chat's error as one of the request's."""
        return renamed(error, _RENAMING, self._places, "input")


def _tool(tool: FunctionTool) -> Tool:
    fields = {name: getattr(tool, name) for name in ToolFunction.model_fields}
    return Tool(type="function", function=ToolFunction.model_construct(**fields))


def _choice(choice: str | FunctionChoice | None) -> str | NamedTool | None:
    if isinstance(choice, FunctionChoice):
        return NamedTool(type="function", function=NamedFunction(name=choice.name))
    return choice


def _format(text: TextOptions | None) -> ResponseFormat | None:
    wanted = text.format if text else None
    if wanted is None or wanted.type == "text":
        return None
    schema = None
    if wanted.type == "json_schema":
        schema = SchemaFormat.model_construct(name=wanted.name, schema_=wanted.schema_)
    return ResponseFormat.model_construct(type=wanted.type, json_schema=schema)
