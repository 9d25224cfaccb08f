"""Replies of calls as grammars.

A grammar of calls is a structural tag (`server.structured.structural_tags`) put together of what
`parsing.syntax` says of the format. Required and named calls are all of the reply, thoughts aside.
With a strict tool the reply is free until a call begins, and every call is one of the tools'. With
a response format the reply is calls, or an answer in that format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from server.conversation.call_arguments import Tag, const, either, in_order
from server.conversation.parsing.format import CallSyntax, MessageSyntax

_ANY_TEXT: Tag = {"type": "any_text"}
_SPACE = r"[ \t\r\n]"


@dataclass(frozen=True)
class ReplyOfCalls:
    """The calls that a reply may have.

    Attributes:
        tags: a call of each tool.
        is_one: there is one call at most.
    """

    syntax: CallSyntax
    tags: Sequence[Tag]
    is_one: bool

    def alone(self) -> Tag:
        """A reply of calls alone, after thoughts where these are messages."""
        syntax = self.syntax
        calls = in_order(const(syntax.opening), self._calls(), const(syntax.closing))
        if syntax.messages is None:
            return calls
        return in_order(_messages(syntax.messages, syntax.messages.thoughts), calls)

    def or_answer(self, answer: Tag) -> Tag:
        """A reply of calls or of an answer alone, after thoughts where these are messages."""
        if (messages := self.syntax.messages) is None:
            return either(self.alone(), answer)
        return in_order(
            _messages(messages, messages.thoughts),
            either(self._calls(), in_order(const(messages.answer), answer)),
        )

    def in_text(self) -> Tag:
        """Text in which calls may begin."""
        syntax, tags = self.syntax, self.tags
        if (messages := syntax.messages) is not None:
            answer = in_order(const(messages.answer), _ANY_TEXT)
            return in_order(
                _messages(messages, messages.thoughts, messages.remark),
                either(self._calls(), answer),
            )
        if syntax.leads:
            first = re.escape(syntax.trigger)
            answer = {"type": "regex", "pattern": f"{_SPACE}*([^ \\t\\r\\n{first}](.|\\n)*)?"}
            return either(self.alone(), answer)
        if syntax.opening:
            tags = [{"begin": syntax.opening, "content": self._calls(), "end": syntax.closing}]
        return {
            "type": "triggered_tags",
            "triggers": [syntax.trigger],
            "tags": list(tags),
            "stop_after_first": self.is_one,
        }

    def _calls(self) -> Tag:
        return {
            "type": "tags_with_separator",
            "tags": list(self.tags),
            "separator": self.syntax.separator,
            "at_least_one": True,
            "stop_after_first": self.is_one,
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
