"""Granite 3: a list of JSON objects behind a token.

<|tool_call|>[{"name": "look", "arguments": {"at": "it"}}]
"""

from __future__ import annotations

from server.conversation.parsing.format import Between, CallSyntax, Exit, JsonCalls, ToolFormat

BEGIN = "<|tool_call|>"

GRANITE = ToolFormat(
    names=("granite",),
    recognised_by=((BEGIN + " followed by a JSON list",), (BEGIN, "available_tools")),
    exits=(Exit(BEGIN, to="calls", eats_space=True),),
    states={
        "calls": JsonCalls(after="after"),
        "after": Between((Exit(BEGIN, to="calls"),)),
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
