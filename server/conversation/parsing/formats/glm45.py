"""GLM 4.5 and later: a call's name, then tags for each key and each value.

<tool_call>look
<arg_key>at</arg_key>
<arg_value>it</arg_value>
</tool_call>
"""

from __future__ import annotations

from server.conversation.parsing.format import CONTENT, Between, CallSyntax, Exit, Field, ToolFormat

BEGIN, END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"

GLM45 = ToolFormat(
    names=("glm45", "glm47"),
    recognised_by=((KEY, VALUE),),
    exits=(Exit(BEGIN, to="name", eats_space=True),),
    strays=(END, KEY, KEY_END, VALUE, VALUE_END),
    states={
        "name": Field("name", (Exit(KEY, to="key"), Exit(END, to=CONTENT, ends_call=True))),
        "key": Field("key", (Exit(KEY_END, to="assigned"),)),
        "assigned": Between((Exit(VALUE, to="value"),)),
        "value": Field("value", (Exit(VALUE_END, to="arguments"),)),
        "arguments": Between((Exit(KEY, to="key"), Exit(END, to=CONTENT, ends_call=True))),
    },
    syntax=CallSyntax(
        begin=BEGIN + "{name}\n",
        end=END,
        arguments="fields",
        separator="\n",
        field_begin=f"{KEY}{{key}}{KEY_END}\n{VALUE}",
        field_end=f"{VALUE_END}\n",
        trigger=BEGIN,
    ),
)
