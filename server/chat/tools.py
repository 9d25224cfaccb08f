"""What a chat's tools ask for: which may be called, and how the template and parsers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server.chat.parsing.parsers import Parsers
from server.chat.parsing.recognise import knows_tools
from server.chat.parsing.values import ToolTypes, argument_types
from server.errors import bad_request
from server.schema.chat import ChatRequest
from server.schema.tools import NamedTool, Tool


def offered_tools(body: ChatRequest) -> list[Tool]:
    """The tools that the model may call; raises `ApiError` for a choice of others.

    With `tool_choice` "none" there are none: the model is not shown any.
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


def check_format(tools: Sequence[Tool], source: str, parsers: Parsers) -> None:
    """Raise a 400 for tools that the template does not show, or whose calls nobody can read."""
    if not tools:
        return
    if not knows_tools(source):
        raise bad_request(
            "tools", "tools are not known to the model's chat template, so it cannot be shown them"
        )
    if parsers.tool_format(source) is None and not parsers.leaves_calls:
        raise bad_request(
            "tools",
            "tools are shown by the model's chat template, but the format of its calls is not "
            "recognised: start the server with --tool-call-parser",
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
