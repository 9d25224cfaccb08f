"""Llama 4 and others with calls as a Python list at a reply's beginning.

[look(at="it", n=2), stop()]
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

BEGIN, END = "<|python_start|>", "<|python_end|>"

PYTHONIC = ToolFormat(
    names=("pythonic", "llama4_pythonic"),
    recognised_by=(("[func_name1(",),),
    openers=(Exit("[", to="calls", keeps=True),),
    exits=(Exit(BEGIN, to="calls", eats_space=True),),
    strays=(END,),
    states={
        "calls": PythonCalls(after="after"),
        "after": Between((Exit(END, to=CONTENT),)),
    },
    syntax=CallSyntax(
        begin="{name}(",
        end=")",
        arguments="python",
        opening="[",
        separator=", ",
        closing="]",
        trigger="[",
        leads=True,
    ),
    tool_names=r"[A-Za-z_][\w.-]*",
)
