"""Nemotron Nano v2: a list of JSON objects between tags.

<TOOLCALL>[{"name": "look", "arguments": {"at": "it"}}]</TOOLCALL>
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

BEGIN, END = "<TOOLCALL>", "</TOOLCALL>"

NEMOTRON = ToolFormat(
    names=("nemotron_json",),
    recognised_by=((BEGIN, "<AVAILABLE_TOOLS>"),),
    exits=(Exit(BEGIN, to="calls", eats_space=True),),
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
