"""Kimi K2: a section of calls, each with an id that holds its name, and JSON arguments.

<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"at": "it"}<|tool_call_end|><|tool_calls_section_end|>

Copies of its template change a list while they render calls, which transformers' sandbox refuses.
So the words alone are known of these.
"""

# ruff: noqa: E501

from __future__ import annotations

from server.conversation.parsing.format import (
    CONTENT,
    Between,
    CallSyntax,
    Exit,
    Field,
    JsonArguments,
    ToolFormat,
)

OPENING, CLOSING = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_AFTER = (Exit(BEGIN, to="name"), Exit(END, to="after"), Exit(CLOSING, to=CONTENT))

KIMI_K2 = ToolFormat(
    names=("kimi_k2",),
    recognised_by=((OPENING, ARGUMENTS),),
    exits=(
        Exit(OPENING, to="section", eats_space=True),
        Exit(BEGIN, to="name", eats_space=True),
    ),
    strays=(ARGUMENTS, END, CLOSING),
    states={
        "section": Between(_AFTER),
        "name": Field(
            "name",
            (Exit(ARGUMENTS, to="arguments"), Exit("{", to="arguments", keeps=True)),
            pattern=r"(?:functions\.)?(?P<name>[\w.:/-]+?)(?::[\w-]+)?",
        ),
        "arguments": JsonArguments(after="after"),
        "after": Between((*_AFTER, Exit(OPENING, to="section"))),
    },
    syntax=CallSyntax(
        begin=f"{BEGIN}functions.{{name}}:{{id}}{ARGUMENTS}",
        end=END,
        opening=OPENING,
        closing=CLOSING,
        trigger=OPENING,
        id_pattern="[0-9]{1,6}",
    ),
)
