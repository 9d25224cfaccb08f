"""Phi-4 mini: a list of JSON objects after a word or between tokens.

functools[{"name": "look", "arguments": {"at": "it"}}]
<|tool_call|>[{"name": "look", "arguments": {"at": "it"}}]<|/tool_call|>
"""

from __future__ import annotations

from server.conversation.parsing.format import (
    CONTENT,
    Between,
    CallSyntax,
    Exit,
    JsonCalls,
    ToolFormat,
)

BEGIN, END, WORD = "<|tool_call|>", "<|/tool_call|>", "functools["

PHI4 = ToolFormat(
    names=("phi4_mini_json",),
    recognised_by=(("<|tool|>", "<|/tool|>"), (WORD,)),
    exits=tuple(Exit(begin, to="calls", eats_space=True) for begin in (BEGIN, WORD)),
    strays=(END,),
    states={
        "calls": JsonCalls(after="after"),
        "after": Between((Exit(END, to=CONTENT), Exit(BEGIN, to="calls"))),
    },
    syntax=CallSyntax(
        begin='{"name": "{name}", "arguments": ',
        end="}",
        opening=BEGIN + "[",
        separator=", ",
        closing="]" + END,
        trigger=BEGIN,
    ),
)
