"""LFM2: a Python list of calls between tokens of its own.

<|tool_call_start|>[look(at="it", n=2), stop()]<|tool_call_end|>
"""

from __future__ import annotations

from server.conversation.parsing.format import (
    CONTENT,
    Between,
    CallSyntax,
    Exit,
    PythonCalls,
    ToolFormat,
)

BEGIN, END = "<|tool_call_start|>", "<|tool_call_end|>"

LFM2 = ToolFormat(
    names=("lfm2",),
    recognised_by=(("List of tools: ", "keep_past_thinking"), ("<|tool_list_start|>",)),
    exits=(Exit(BEGIN, to="calls", eats_space=True),),
    strays=(END,),
    states={
        "calls": PythonCalls(after="after"),
        "after": Between((Exit(END, to=CONTENT), Exit(BEGIN, to="calls"))),
    },
    syntax=CallSyntax(
        begin="{name}(",
        end=")",
        arguments="python",
        opening=BEGIN + "[",
        separator=", ",
        closing="]" + END,
        trigger=BEGIN,
    ),
    tool_names=r"[A-Za-z_][\w.-]*",
)
