"""Mistral: a list of JSON objects after a token, or since 2025 a token before each call.

[TOOL_CALLS][{"name": "look", "arguments": {"at": "it"}}]
[TOOL_CALLS]look[ARGS]{"at": "it"}[TOOL_CALLS]stop[ARGS]{}
"""

from __future__ import annotations

from server.conversation.parsing.format import (
    Between,
    CallSyntax,
    Exit,
    Field,
    JsonArguments,
    JsonCalls,
    ReasoningFormat,
    Start,
    ToolFormat,
)

CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

MISTRAL = ToolFormat(
    names=("mistral",),
    recognised_by=((CALLS,),),
    exits=(Exit(CALLS, to="which", eats_space=True),),
    strays=(CALL_ID, ARGS),
    states={
        "which": Start(
            (Exit("[", to="calls", keeps=True), Exit("{", to="calls", keeps=True)),
            otherwise="name",
        ),
        "calls": JsonCalls(after="after"),
        "name": Field(
            "name",
            (
                Exit(ARGS, to="arguments"),
                Exit(CALL_ID, to="id"),
                Exit("{", to="arguments", keeps=True),
            ),
        ),
        "id": Field("ignored", (Exit(ARGS, to="arguments"),)),
        "arguments": JsonArguments(after="after"),
        "after": Between((Exit(CALLS, to="which"),)),
    },
    syntax=CallSyntax(begin=CALLS + "{name}" + ARGS, end="", trigger=CALLS),
    id_chars=9,
)

MISTRAL_REASONING = ReasoningFormat(
    names=("mistral",), recognised_by=(("[THINK]", "[/THINK]"),), begin="[THINK]", end="[/THINK]"
)
