"""Llama 3.1 to 4 with calls as JSON: a reply that begins with an object is a call.

{"name": "look", "parameters": {"at": "it"}}; {"name": "stop", "parameters": {}}

After other text an object is a call where it begins with a name.
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

PYTHON_TAG, PYTHON_START, PYTHON_END = "<|python_tag|>", "<|python_start|>", "<|python_end|>"
_BEGINNINGS = ('{"name": "', '{"name":"', '{"type": "function"', '{"type":"function"')
"""What calls begin with after a text, where an object may be an example of something else."""

LLAMA3_JSON = ToolFormat(
    names=("llama3_json", "llama4_json"),
    recognised_by=(
        ("<|start_header_id|>", '"parameters": '),
        ("<|header_start|>", '"parameters": '),
    ),
    openers=(Exit("{", to="calls", keeps=True),),
    exits=(
        Exit(PYTHON_TAG, to="calls", eats_space=True),
        Exit(PYTHON_START, to="calls", eats_space=True),
        *(Exit(begin, to="calls", keeps=True, eats_space=True) for begin in _BEGINNINGS),
    ),
    strays=(PYTHON_END,),
    states={
        "calls": JsonCalls(after="after", name_keys=("name", "function"), needs_arguments=True),
        "after": Between((Exit(PYTHON_END, to=CONTENT), Exit(PYTHON_TAG, to="calls"))),
    },
    syntax=CallSyntax(
        begin='{"name": "{name}", "parameters": ', end="}", separator="; ", trigger="{", leads=True
    ),
)
