"""What a chat's tools ask for: which may be called, and how the template and parsers see them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.conversation.parsing.parsers import Parsers
from server.conversation.parsing.recognise import knows_tools
from server.conversation.parsing.values import ToolTypes, argument_types
from server.endpoints.chat.schema import ChatRequest
from server.errors import bad_request
from server.schema.base import shown
from server.schema.tools import NamedTool, Tool


def offered_tools(body: ChatRequest) -> list[Tool]:
    """The tools that the model may call; raises `ApiError` for a choice of others.

    With `tool_choice` "none" there are none.
    """
    tools, choice = body.tools or [], body.tool_choice
    if choice == "none":
        return []
    if isinstance(choice, NamedTool):
        _check_named(choice, tools)
    elif choice == "required" and not tools:
        raise bad_request("tool_choice", "tool_choice needs tools to be given")
    return tools


def _check_named(choice: NamedTool, tools: Sequence[Tool]) -> None:
    names = [tool.function.name for tool in tools]
    if choice.function.name not in names:
        named = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "none"
        raise bad_request(
            "tool_choice.function.name",
            f"tool_choice.function.name must be the name of one of the tools ({named}), "
            f"got {choice.function.name[:64]!r}",
        )


def shown_tools(body: ChatRequest, source: str, parsers: Parsers, *, excludes: bool) -> list[Tool]:
    """The tools that the template shows, also those that may not be called.

    A conversation whose tools come and go loses its prefix in the cache, since they stand in front
    of it. So with `tool_choice` "none" the prompt is what it is without.

    Args:
        source: the chat's template.
        excludes: with "none" no tools are shown.
    """
    if not body.tools:
        return []
    offered = offered_tools(body)
    if offered or excludes or not knows_tools(source):
        return offered
    return body.tools if parsers.tool_format(source) else []


def num_calls_shown(body: ChatRequest) -> int | None:
    """How many calls of a reply a message may have; None for no limit."""
    if body.tool_choice == "none":
        return 0
    is_one = body.parallel_tool_calls is False or isinstance(body.tool_choice, NamedTool)
    return 1 if is_one else None


def check_format(tools: Sequence[Tool], source: str, parsers: Parsers) -> None:
    """Raise a 400 for tools that the template does not show, or whose calls nobody can read."""
    if not tools:
        return
    check_known(tools, source)
    tool_format = parsers.tool_format(source)
    if tool_format is None and not parsers.leaves_calls:
        raise bad_request(
            "tools",
            "tools are shown by the model's chat template, but the format of its calls is not "
            "recognised: start the server with --tool-call-parser",
        )
    if tool_format is not None and tool_format.tool_names:
        _check_names(tools, tool_format.tool_names)


def check_known(tools: Sequence[Tool], source: str) -> None:
    """Raise a 400 for tools that the template does not show."""
    if tools and not knows_tools(source):
        raise bad_request(
            "tools", "tools are not known to the model's chat template, so it cannot be shown them"
        )


def _check_names(tools: Sequence[Tool], possible: str) -> None:
    """Raise a 400 for a name that calls in the model's format cannot have."""
    for i, tool in enumerate(tools):
        if not re.fullmatch(possible, tool.function.name):
            where = f"tools[{i}].function.name"
            raise bad_request(
                where,
                f"{where} must match {possible} in this model's format of calls, "
                f"got {shown(tool.function.name)}",
            )


def template_tools(tools: Sequence[Tool]) -> list[Mapping[str, Any]] | None:
    """The tools as templates take them; None for none."""
    return [_template_tool(tool) for tool in tools] or None


def _template_tool(tool: Tool) -> Mapping[str, Any]:
    function = tool.function
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    # Many templates read it of every tool.
    shown["parameters"] = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": shown}


def tool_types(tools: Sequence[Tool]) -> ToolTypes:
    """What the tools' schemas say of the types of arguments."""
    return {tool.function.name: argument_types(tool.function.parameters) for tool in tools}
