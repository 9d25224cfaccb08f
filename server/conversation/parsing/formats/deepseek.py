"""DeepSeek V3, R1 and V3.1: calls between tokens of their own; V3 fences the arguments.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look
```json
{"at": "it"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"at": "it"}
<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

# ruff: noqa: RUF001, RUF002

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

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
FENCE = "```"

_ENDS = (Exit(CALL_END, to="calls"), Exit(CALLS_END, to=CONTENT), Exit(CALL, to="call"))
_OUTER = Between((Exit(CALL, to="call"), Exit(CALLS_END, to=CONTENT)))
_OPENS = (Exit(CALLS, to="calls", eats_space=True), Exit(CALL, to="call", eats_space=True))
_STRAYS = (CALLS_END, CALL_END, SEPARATOR)

DEEPSEEK_V3 = ToolFormat(
    names=("deepseek_v3",),
    recognised_by=((CALL, FENCE + "json"),),
    exits=_OPENS,
    strays=_STRAYS,
    states={
        "calls": _OUTER,
        "call": Field("ignored", (Exit(SEPARATOR, to="name"),)),
        "name": Field("name", (Exit(FENCE + "json", to="arguments", eats_space=True),)),
        "arguments": JsonArguments(after="after"),
        "after": Between((Exit(FENCE, to="after"), *_ENDS)),
    },
    syntax=CallSyntax(
        begin=f"{CALL}function{SEPARATOR}{{name}}\n{FENCE}json\n",
        end=f"\n{FENCE}{CALL_END}",
        opening=CALLS,
        separator="\n",
        closing=CALLS_END,
        trigger=CALLS,
    ),
)

DEEPSEEK_V31 = ToolFormat(
    names=("deepseek_v31",),
    recognised_by=((CALL,),),
    exits=_OPENS,
    strays=_STRAYS,
    states={
        "calls": _OUTER,
        "call": Field("name", (Exit(SEPARATOR, to="arguments"),)),
        "arguments": JsonArguments(after="after"),
        "after": Between(_ENDS),
    },
    syntax=CallSyntax(
        begin=f"{CALL}{{name}}{SEPARATOR}",
        end=CALL_END,
        opening=CALLS,
        closing=CALLS_END,
        trigger=CALLS,
    ),
)
