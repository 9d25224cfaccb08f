"""Granite 3: a list of JSON objects after a token.

<|tool_call|>[{"name": "look", "arguments": {"at": "it"}}]

Some of its models write the token's words as text, without the bars.
"""

from __future__ import annotations

from server.conversation.parsing.format import Between, CallSyntax, Exit, JsonCalls, ToolFormat

BEGIN, SPELLED = "<|tool_call|>", "<tool_call>"
_CALLS = tuple(Exit(begin, to="calls", eats_space=True) for begin in (BEGIN, SPELLED))

GRANITE = ToolFormat(
    names=("granite",),
    recognised_by=((BEGIN + " followed by a JSON list",), (BEGIN, "available_tools")),
    exits=_CALLS,
    states={
        "calls": JsonCalls(after="after"),
        "after": Between(_CALLS),
    },
    syntax=CallSyntax(
        begin='{"name": "{name}", "arguments": ',
        end="}",
        opening=BEGIN + "[",
        separator=", ",
        closing="]",
        trigger=BEGIN,
    ),
)
