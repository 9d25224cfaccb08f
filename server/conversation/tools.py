"""What a conversation's tools ask for: how template and parsers see those that may be called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.conversation.parsing.parsers import Parsers
from server.conversation.parsing.recognise import knows_tools
from server.conversation.parsing.values import ToolTypes, argument_types
from server.conversation.spec import ConversationSpec, ToolSpec
from server.errors import ApiError, bad_request
from server.schema.base import shown


def check_choice(spec: ConversationSpec) -> None:
    """Raise a 400 for a choice of a tool that is not there."""
    if spec.tool_choice == "required" and spec.named_tool is None and not spec.tools:
        raise spec.names.refuse("tool_choice", "needs tools to be given")
    names = [tool.name for tool in spec.tools]
    for name in sorted(spec.allowed or ()):
        if name not in names:
            raise _unknown(spec, "allowed", name, names)
    if spec.named_tool is not None and spec.named_tool not in names:
        raise _unknown(spec, "named_tool", spec.named_tool, names)


def _unknown(spec: ConversationSpec, field: str, name: str, names: Sequence[str]) -> ApiError:
    known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "none"
    words = f"must be the name of one of the tools ({known}), got {name[:64]!r}"
    return spec.names.refuse(field, words)


def shown_tools(
    spec: ConversationSpec, source: str, parsers: Parsers, *, excludes: bool
) -> Sequence[ToolSpec]:
    """The tools that the template shows, also those that may not be called.

    A conversation whose tools come and go loses its prefix in the cache, since they come in front
    of it. So with `tool_choice` "none" the prompt is what it is without.

    Args:
        source: the chat's template.
        excludes: with "none" no tools are shown.
    """
    callable_tools = spec.callable_tools if spec.allowed is None else spec.tools
    if callable_tools or excludes or not spec.tools or not knows_tools(source):
        return callable_tools
    return spec.tools if parsers.tool_format(source) else ()


def check_format(tools: Sequence[ToolSpec], source: str, parsers: Parsers) -> None:
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


def check_known(tools: Sequence[ToolSpec], source: str) -> None:
    """Raise a 400 for tools that the template does not show."""
    if tools and not knows_tools(source):
        raise bad_request(
            "tools", "tools are not known to the model's chat template, so it cannot be shown them"
        )


def _check_names(tools: Sequence[ToolSpec], possible: str) -> None:
    """Raise a 400 for a name that calls in the model's format cannot have."""
    for tool in tools:
        if not re.fullmatch(possible, tool.name):
            where = f"{tool.place}.name"
            raise bad_request(
                where,
                f"{where} must match {possible} in this model's format of calls, "
                f"got {shown(tool.name)}",
            )


def template_tools(tools: Sequence[ToolSpec]) -> list[Mapping[str, Any]] | None:
    """The tools as templates take them; None for none."""
    return [_template_tool(tool) for tool in tools] or None


def _template_tool(tool: ToolSpec) -> Mapping[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    # Many templates read it of every tool.
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def tool_types(tools: Sequence[ToolSpec]) -> ToolTypes:
    """What the tools' schemas say of the types of arguments."""
    return {tool.name: argument_types(tool.parameters) for tool in tools}
