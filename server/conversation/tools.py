"""A conversation's tools against what the model's template and its format of calls can have."""

from __future__ import annotations

import re

from server.conversation.parsing.parsers import Parsers
from server.conversation.parsing.recognise import knows_tools
from server.conversation.spec import ConversationSpec
from server.errors import bad_request
from server.schema.base import shown


def check_tools(spec: ConversationSpec, source: str, parsers: Parsers) -> None:
    """Raise a 400 for tools that are not there, not shown, or whose calls nobody can read.

    Args:
        source: the chat's template.
    """
    names, tools = [tool.name for tool in spec.tools], spec.callable_tools
    if spec.tool_choice == "required" and spec.named_tool is None and not names:
        raise spec.names.refuse("tool_choice", "needs tools to be given")
    asked = [("allowed", name) for name in sorted(spec.allowed or ())]
    for field, name in (*asked, ("named_tool", spec.named_tool)):
        if name is not None and name not in names:
            known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "none"
            words = f"must be the name of one of the tools ({known}), got {name[:64]!r}"
            raise spec.names.refuse(field, words)
    if not tools:
        return
    check_shown(source)
    tool_format = parsers.tool_format(source)
    if tool_format is None and not parsers.leaves_calls:
        raise bad_request(
            "tools",
            "tools are shown by the model's chat template, but the format of its calls is not "
            "recognised: start the server with --tool-call-parser",
        )
    possible = tool_format.tool_names if tool_format else None
    for tool in tools:
        if possible and not re.fullmatch(possible, tool.name):
            where = f"{tool.place}.name"
            words = f"must match {possible} in this model's format of calls"
            raise bad_request(where, f"{where} {words}, got {shown(tool.name)}")


def check_shown(source: str) -> None:
    """Raise a 400 where a template does not show tools."""
    if not knows_tools(source):
        raise bad_request(
            "tools", "tools are not known to the model's chat template, so it cannot be shown them"
        )
