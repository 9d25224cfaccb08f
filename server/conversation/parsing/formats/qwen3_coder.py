"""Qwen 3 Coder: each call a function tag, a tag for every parameter; Qwen 3 itself is `hermes`.

<tool_call>
<function=look>
<parameter=at>
it
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

from server.conversation.parsing.format import CONTENT, Between, CallSyntax, Exit, Field, ToolFormat

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"

QWEN3_CODER = ToolFormat(
    names=("qwen3_coder", "qwen3_xml"),
    recognised_by=((FUNCTION, PARAMETER),),
    exits=(
        Exit(BEGIN, to="call", eats_space=True),
        Exit(FUNCTION, to="name", eats_space=True),
    ),
    strays=(END, FUNCTION_END, PARAMETER, PARAMETER_END),
    states={
        "call": Between((Exit(FUNCTION, to="name"), Exit(END, to=CONTENT))),
        "name": Field("name", (Exit(">", to="parameters"),)),
        "parameters": Between(
            (
                Exit(PARAMETER, to="key"),
                Exit(FUNCTION_END, to="call", ends_call=True),
                Exit(END, to=CONTENT, ends_call=True),
            )
        ),
        "key": Field("key", (Exit(">", to="value"),)),
        "value": Field(
            "value",
            (
                Exit(PARAMETER_END, to="parameters"),
                # Models forget the end of a value, and go on with a line of their own.
                Exit("\n" + PARAMETER, to="key"),
                Exit("\n" + FUNCTION_END, to="call", ends_call=True),
                Exit("\n" + END, to=CONTENT, ends_call=True),
            ),
            trims_line=True,
        ),
    },
    syntax=CallSyntax(
        begin=f"{BEGIN}\n{FUNCTION}{{name}}>\n",
        end=f"{FUNCTION_END}\n{END}",
        arguments="fields",
        separator="\n",
        field_begin=f"{PARAMETER}{{key}}>\n",
        field_end=f"\n{PARAMETER_END}\n",
        trigger=BEGIN,
    ),
)
