"""Formats whose calls are JSON objects between two tags: Hermes, Nemotron Nano v2, Phi-4 mini.

Hermes, Qwen 2.5 and Qwen 3, each call between tags of its own:

<tool_call>
{"name": "look", "arguments": {"at": "it"}}
</tool_call>

Nemotron, all calls as a list:

<TOOLCALL>[{"name": "look", "arguments": {"at": "it"}}]</TOOLCALL>

Phi-4 mini, such a list after a word or between tokens:

functools[{"name": "look", "arguments": {"at": "it"}}]
<|tool_call|>[{"name": "look", "arguments": {"at": "it"}}]<|/tool_call|>
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


def _tagged(
    name: str,
    begin: str,
    end: str,
    syntax: CallSyntax,
    *recognised_by: tuple[str, ...],
    word: str | None = None,
) -> ToolFormat:
    """The format of one model.

    Args:
        recognised_by: as in `ToolFormat`.
        word: begins calls too.
    """
    begins = (begin,) if word is None else (begin, word)
    return ToolFormat(
        names=(name,),
        recognised_by=recognised_by,
        exits=tuple(Exit(each, to="calls", eats_space=True) for each in begins),
        strays=(end,),
        states={
            "calls": JsonCalls(after="after"),
            "after": Between((Exit(end, to=CONTENT), Exit(begin, to="calls"))),
        },
        syntax=syntax,
    )


def _list(begin: str, end: str) -> CallSyntax:
    """A list of calls between two tags."""
    return CallSyntax(
        begin='{"name": "{name}", "arguments": ',
        end="}",
        opening=begin + "[",
        separator=", ",
        closing="]" + end,
        trigger=begin,
    )


_HERMES, _HERMES_END = "<tool_call>", "</tool_call>"
HERMES = _tagged(
    "hermes",
    _HERMES,
    _HERMES_END,
    CallSyntax(
        begin=_HERMES + '\n{"name": "{name}", "arguments": ',
        end="}\n" + _HERMES_END,
        separator="\n",
        trigger=_HERMES,
    ),
    (_HERMES, "arguments"),
)

_NEMOTRON = "<TOOLCALL>", "</TOOLCALL>"
NEMOTRON = _tagged(
    "nemotron_json", *_NEMOTRON, _list(*_NEMOTRON), (_NEMOTRON[0], "<AVAILABLE_TOOLS>")
)

_PHI4, _PHI4_WORD = ("<|tool_call|>", "<|/tool_call|>"), "functools["
PHI4 = _tagged(
    "phi4_mini_json",
    *_PHI4,
    _list(*_PHI4),
    ("<|tool|>", "<|/tool|>"),
    (_PHI4_WORD,),
    word=_PHI4_WORD,
)
