"""Calls that keep to a grammar: required and named ones, and those beside strict tools.

A grammar of calls is a structural tag (`server.structured.structural_tags`) put together of what
`parsing.syntax` says of the format. Required and named calls are all of the reply, thoughts aside.
With a strict tool the reply is free until a call begins, and every call is one of the tools'.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from server.chat.call_arguments import ArgumentsWriter, Tag, const
from server.chat.parsing.format import CallSyntax, MessageSyntax, ToolFormat
from server.errors import bad_request
from server.schema.chat import ChatRequest
from server.schema.tools import NamedTool, Tool
from server.structured.checker import GrammarChecker
from server.structured.spec import GrammarSpec

_ANY_TEXT: Tag = {"type": "any_text"}
_SPACE = r"[ \t\r\n]"


class CallsGrammar(NamedTuple):
    """The grammar that a reply's calls keep to.

    Attributes:
        ignored: where keywords of the tools' schemas stood that are not kept to.
        holds_thoughts: thoughts are part of it, so that it begins with the first token.
    """

    spec: GrammarSpec
    ignored: list[str]
    holds_thoughts: bool


async def calls_grammar(
    body: ChatRequest,
    tools: Sequence[Tool],
    tool_format: ToolFormat | None,
    grammars: GrammarChecker,
) -> CallsGrammar | None:
    """The grammar that a reply's calls keep to; None where they are free.

    Args:
        tools: the tools that may be called.
        tool_format: of the model's calls.

    Raises:
        ApiError: a schema or the format cannot be kept to; too many grammars wait.
    """
    choice = body.tool_choice
    is_forced = choice == "required" or isinstance(choice, NamedTool)
    if not tools or not (is_forced or any(tool.function.strict for tool in tools)):
        return None
    param = "tool_choice" if is_forced else "tools"
    if tool_format is None:
        raise bad_request(
            param, f"{param}: calls in the format of this model cannot be kept to a grammar"
        )
    named = choice.function.name if isinstance(choice, NamedTool) else None
    options = body.structured_outputs
    writer = ArgumentsWriter(
        tool_format, grammars, drops_keywords=options is not None and bool(options.lenient)
    )
    tags = [
        await writer.call(i, tool.function, is_strict=is_forced or bool(tool.function.strict))
        for i, tool in enumerate(tools)
        if named in (None, tool.function.name)
    ]
    syntax = tool_format.syntax
    once = body.parallel_tool_calls is False or syntax.is_last
    grammar = _forced(syntax, tags, once) if is_forced else _free(syntax, tags, once)
    return CallsGrammar(
        GrammarSpec("structural_tag", grammar, param), writer.ignored, syntax.messages is not None
    )


def _forced(syntax: CallSyntax, tags: list[Tag], once: bool) -> Tag:
    """A reply of calls alone, of one if `once`, behind thoughts where these are messages."""
    calls = _sequence(const(syntax.opening), _calls(syntax, tags, once), const(syntax.closing))
    if syntax.messages is None:
        return calls
    return _sequence(_messages(syntax.messages, syntax.messages.thoughts), calls)


def _free(syntax: CallSyntax, tags: list[Tag], once: bool) -> Tag:
    """Text in which calls may begin."""
    if (messages := syntax.messages) is not None:
        answer = _sequence(const(messages.answer), _ANY_TEXT)
        return _sequence(
            _messages(messages, messages.thoughts, messages.remark),
            _either(_calls(syntax, tags, once), answer),
        )
    if syntax.leads:
        first = re.escape(syntax.trigger)
        answer = {"type": "regex", "pattern": f"{_SPACE}*([^ \\t\\r\\n{first}](.|\\n)*)?"}
        return _either(_forced(syntax, tags, once), answer)
    if syntax.opening:
        tags = [
            {"begin": syntax.opening, "content": _calls(syntax, tags, once), "end": syntax.closing}
        ]
    return {
        "type": "triggered_tags",
        "triggers": [syntax.trigger],
        "tags": tags,
        "stop_after_first": once,
    }


def _calls(syntax: CallSyntax, tags: list[Tag], once: bool) -> Tag:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": syntax.separator,
        "at_least_one": True,
        "stop_after_first": once,
    }


def _messages(syntax: MessageSyntax, *begins: str) -> Tag:
    """Any number of messages that begin in one of these ways, and what leads to the next."""
    tags = [
        {"type": "tag", "begin": begin, "content": _ANY_TEXT, "end": syntax.end} for begin in begins
    ]
    some = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": syntax.separator,
        "at_least_one": True,
    }
    return _either(_sequence(some, const(syntax.separator)), const(""))


def _sequence(*elements: Tag) -> Tag:
    return {"type": "sequence", "elements": list(elements)}


def _either(*elements: Tag) -> Tag:
    return {"type": "or", "elements": list(elements)}
