"""What a chat template writes around a message, up to where the reply's first word is read.

A template is rendered once a request, with the message of one prompt; the others of the request get
the same text around theirs. Thoughts are off where the template can leave them out, else the prompt
ends with an empty thought. Where a model is to think first, the prompt ends within a thought.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from server.conversation.parsing.format import ReasoningFormat
from server.conversation.parsing.parsers import Parsers
from server.conversation.template import ChatTemplate, check_variables
from server.conversation.template_rendering import Conversation, Message
from server.errors import ApiError, bad_request
from server.schema.template import thinking_switches

PLAIN_TAIL = "\nAnswer:"
"""What ends a prompt of a model without a chat template."""
_QUESTION, _ANSWER = "Which?", "Q"
_MAX_REPLIES = 64


class ThoughtEnd(NamedTuple):
    """What ends a thought.

    Attributes:
        marker: what the model writes at its end.
        text: all that is written between a thought's text and the reply's first word.
    """

    marker: str
    text: str


class ReplyFrame(NamedTuple):
    """The text around a message.

    Attributes:
        head, tail: before and after it.
        thought: the tail opens a thought, which this ends; None where the reply begins at once.
        space: white space that a reply begins with.
        after: what follows a reply; empty where that is not known.
        is_plain: the model has no chat template.
    """

    head: str
    tail: str
    space: str = ""
    after: str = ""
    is_plain: bool = False
    thought: ThoughtEnd | None = None

    def end(self, thought: str = "") -> str:
        """All that comes between a message and its reply, the model's thought included."""
        if self.thought is None:
            return self.tail
        return f"{self.tail}{thought.rstrip()}{self.thought.text}"


class ReplyFrames:
    """Finds the frames of one server's chat template."""

    def __init__(self, template: ChatTemplate, parsers: Parsers) -> None:
        self._template = template
        self._parsers = parsers
        self._replies: dict[bytes, tuple[str, str]] = {}

    async def frame(
        self,
        content: str,
        system: str | None,
        variables: Mapping[str, Any],
        param: str,
        *,
        thinks: bool = False,
    ) -> ReplyFrame:
        """The frame of a user's message with this content; raises `ApiError`.

        Args:
            system: the text of a system's message before it.
            variables: `chat_template_kwargs`.
            param: the request's field that has the content, for errors.
            thinks: the model writes a thought before its reply.
        """
        check_variables(variables)
        if not self._template.sources():
            if thinks:
                raise _thoughtless("has no chat template")
            head = "" if system is None else f"{system}\n\n"
            return ReplyFrame(head, PLAIN_TAIL, space=" ", is_plain=True)
        source = self._template.source(with_tools=False)
        variables = {**thinking_switches(on=thinks), **variables}
        before: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        conversation = Conversation([*before, _user(content)], variables=variables, param=param)
        text = await self._template.text(source, conversation)
        head, found, tail = text.rpartition(content)
        if not found:
            raise bad_request(
                param, "the model's chat template changes what a message holds: it cannot be read"
            )
        if system is not None and system.strip() not in head:
            raise bad_request(
                param, "the model's chat template shows no system message: leave it out"
            )
        reasoning = self._parsers.reasoning_format(source)
        tail += _opened_thought(tail, reasoning) if thinks else _closed_thoughts(tail, reasoning)
        thought = _thought_end(tail, reasoning) if thinks and reasoning else None
        space, after = await self._reply(source, variables)
        frame = ReplyFrame(head, tail, space, after, thought=thought)
        return frame._replace(space="") if frame.end()[-1:].isspace() else frame

    async def _render(
        self,
        source: str,
        messages: list[Message],
        variables: Mapping[str, Any],
        *,
        ends: bool = True,
    ) -> str:
        conversation = Conversation(messages, add_generation_prompt=ends, variables=variables)
        return await self._template.text(source, conversation)

    async def _reply(self, source: str, variables: Mapping[str, Any]) -> tuple[str, str]:
        """What a template writes before and after a reply's text."""
        key = orjson.dumps((source, variables), option=orjson.OPT_SORT_KEYS)
        if (found := self._replies.get(key)) is None:
            found = await self._read_reply(source, variables)
            if len(self._replies) < _MAX_REPLIES:
                self._replies[key] = found
        return found

    async def _read_reply(self, source: str, variables: Mapping[str, Any]) -> tuple[str, str]:
        question = [_user(_QUESTION)]
        answered: list[Message] = [*question, {"role": "assistant", "content": _ANSWER}]
        try:
            begun = await self._render(source, question, variables)
            whole = await self._render(source, answered, variables, ends=False)
        except ApiError:
            return "", ""
        _, _, after = whole.rpartition(_ANSWER)
        reply = whole.removeprefix(begun)
        match = re.match(rf"(\s*){_ANSWER}", reply) if reply != whole else None
        return ("" if match is None else match[1]), after


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _closed_thoughts(tail: str, reasoning: ReasoningFormat | None) -> str:
    """What a prompt that ends in `tail` lacks for its reply to begin with the answer."""
    if reasoning is None:
        return ""
    if reasoning.states:  # a reply's messages have headers of their own
        return reasoning.answer
    end = tail.rstrip()
    if end.endswith(reasoning.begin):
        space = "" if tail.endswith("\n") else "\n"
        return f"{space}\n{reasoning.end}\n\n"
    if reasoning.begins_open and not end.endswith(reasoning.end):
        return f"{reasoning.begin}\n\n{reasoning.end}\n\n"
    return ""


def _opened_thought(tail: str, reasoning: ReasoningFormat | None) -> str:
    """What a prompt that ends in `tail` lacks for its reply to begin with a thought."""
    if reasoning is None:
        raise _thoughtless("has no thoughts by its chat template")
    end = tail.rstrip()
    if end.endswith(reasoning.end) and not reasoning.states:
        raise _thoughtless("closes thoughts by its chat template and chat_template_kwargs")
    if end.endswith(reasoning.begin):
        return ""
    return reasoning.begin if reasoning.states else f"{reasoning.begin}\n"


def _thought_end(tail: str, reasoning: ReasoningFormat) -> ThoughtEnd:
    """What ends a thought that `tail` opens."""
    if reasoning.states:  # the answer is a message of its own, which begins as this one did
        _, _, header = tail.removesuffix(reasoning.begin).rpartition(reasoning.end)
        return ThoughtEnd(reasoning.end, f"{reasoning.end}{header}{reasoning.answer}")
    return ThoughtEnd(reasoning.end, f"\n{reasoning.end}\n\n")


def _thoughtless(words: str) -> ApiError:
    return bad_request("reasoning", f"reasoning needs a model that thinks; this one {words}")
