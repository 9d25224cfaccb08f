"""Calls that keep to a grammar: required and named ones, and those beside strict tools or a format.

A grammar of calls is a structural tag (`server.structured.structural_tags`) put together of what
`parsing.syntax` says of the format. Required and named calls are all of the reply, thoughts aside.
With a strict tool the reply is free until a call begins, and every call is one of the tools'. With
a response format the reply is calls, or an answer in that format.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec.structs import replace

from server.conversation.call_arguments import ArgumentsWriter, Tag, const, either, in_order
from server.conversation.parsing.format import CallSyntax, MessageSyntax, ToolFormat
from server.conversation.spec import ConversationSpec
from server.errors import bad_request
from server.structured.checker import GrammarChecker
from server.structured.spec import GrammarSpec

_ANY_TEXT: Tag = {"type": "any_text"}
_SPACE = r"[ \t\r\n]"


class CallsGrammar(NamedTuple):
    """The grammar that a reply's calls keep to.

    Attributes:
        ignored: where keywords of the tools' schemas are not kept to.
        holds_thoughts: thoughts are part of it, so that it begins with the first token.
    """

    spec: GrammarSpec
    ignored: list[str]
    holds_thoughts: bool


async def calls_grammar(
    spec: ConversationSpec, tool_format: ToolFormat | None, grammars: GrammarChecker
) -> CallsGrammar | None:
    """The grammar that a reply's calls keep to; None where they are free.

    The answer that a response format asks for is part of it, where the model may give one instead.

    Args:
        tool_format: of the model's calls.

    Raises:
        ApiError: a schema or the format cannot be kept to; too many grammars wait.
    """
    tools, is_forced = spec.callable_tools, spec.tool_choice == "required"
    is_strict = any(tool.strict for tool in tools)
    answer = spec.grammar if spec.grammar and spec.grammar.allows_calls and not is_forced else None
    is_held = is_forced or is_strict or spec.allowed is not None
    if not tools or not (is_held or answer):
        return None
    param = spec.names["tool_choice" if is_forced else "tools" if is_strict else "response_format"]
    if tool_format is None:
        if not is_held:
            return None  # calls are content, which keeps to its format
        raise bad_request(
            param, f"{param}: calls in the format of this model cannot be kept to a grammar"
        )
    writer = ArgumentsWriter(
        tool_format, grammars, drops_keywords=spec.drops_keywords or grammars.is_lenient
    )
    tags = [
        await writer.call(tool, is_strict=is_forced or tool.strict)
        for tool in tools
        if spec.named_tool in (None, tool.name)
    ]
    syntax = tool_format.syntax
    once = spec.max_calls == 1 or syntax.is_last
    found = GrammarSpec("structural_tag", None, param)
    if answer is not None:
        found = replace(found, whitespace=answer.whitespace)
        checked = await grammars.check(answer)
        writer.ignored += checked.ignored
        schema = answer.value if checked.reduced is None else checked.reduced
        json: Tag = {"type": "json_schema", "json_schema": schema}
        grammar = _calls_or(syntax, tags, once, json)
    else:
        grammar = _forced(syntax, tags, once) if is_forced else _free(syntax, tags, once)
    return CallsGrammar(replace(found, value=grammar), writer.ignored, syntax.messages is not None)


def _forced(syntax: CallSyntax, tags: list[Tag], once: bool) -> Tag:
    """A reply of calls alone, of one if `once`, after thoughts where these are messages."""
    calls = in_order(const(syntax.opening), _calls(syntax, tags, once), const(syntax.closing))
    if syntax.messages is None:
        return calls
    return in_order(_messages(syntax.messages, syntax.messages.thoughts), calls)


def _calls_or(syntax: CallSyntax, tags: list[Tag], once: bool, answer: Tag) -> Tag:
    """A reply of calls alone, or of an answer alone, after thoughts where these are messages."""
    if (messages := syntax.messages) is None:
        return either(_forced(syntax, tags, once), answer)
    return in_order(
        _messages(messages, messages.thoughts),
        either(_calls(syntax, tags, once), in_order(const(messages.answer), answer)),
    )


def _free(syntax: CallSyntax, tags: list[Tag], once: bool) -> Tag:
    """Text in which calls may begin."""
    if (messages := syntax.messages) is not None:
        answer = in_order(const(messages.answer), _ANY_TEXT)
        return in_order(
            _messages(messages, messages.thoughts, messages.remark),
            either(_calls(syntax, tags, once), answer),
        )
    if syntax.leads:
        first = re.escape(syntax.trigger)
        answer = {"type": "regex", "pattern": f"{_SPACE}*([^ \\t\\r\\n{first}](.|\\n)*)?"}
        return either(_forced(syntax, tags, once), answer)
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
    return either(in_order(some, const(syntax.separator)), const(""))
