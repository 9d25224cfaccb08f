"""Hermes, Qwen 2.5 and Qwen 3: each call a JSON object between tags.

<tool_call>
{"name": "look", "arguments": {"at": "it"}}
</tool_call>
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

BEGIN, END = "<tool_call>", "</tool_call>"

HERMES = ToolFormat(
    names=("hermes",),
    recognised_by=((BEGIN, "arguments"),),
    exits=(Exit(BEGIN, to="calls", eats_space=True),),
    strays=(END,),
    states={
        "calls": JsonCalls(after="after"),
        "after": Between((Exit(END, to=CONTENT), Exit(BEGIN, to="calls"))),
    },
    syntax=CallSyntax(
        begin=BEGIN + '\n{"name": "{name}", "arguments": ',
        end="}\n" + END,
        separator="\n",
        trigger=BEGIN,
    ),
)
