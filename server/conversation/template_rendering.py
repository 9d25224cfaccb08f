"""A conversation rendered by a chat template, in whichever thread or process this is called.

Rendering is transformers' own (`render_jinja_template`): its sandbox, its cache of compiled
templates, its treatment of `continue_final_message`. So a prompt is what `apply_chat_template`
makes of the same messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from engine.structured.without_torch import prepare_for_tokenizers
from server.conversation.parsing.learning.learn import Formats, formats_of
from server.errors import bad_request

MAX_CHARS = 16 << 20
"""A rendered prompt has at most; longer than any context that is served."""

Message = dict[str, Any]
DEVELOPER = "developer"
"""OpenAI's newer name of the system role, which few templates know."""
_ASKS_FOR_NONE = re.compile(r"""message(?:\[['"]content['"]\]|\.content) is none""")
"""What a template has that knows messages of calls alone by their null content."""


class Conversation(msgspec.Struct, frozen=True):
    """What a template is given.

    Attributes:
        messages: as transformers takes them, the role "developer" aside; no key has the value None.
        tools, documents: JSON objects; None where the request has none.
        add_generation_prompt: end with the beginning of a reply.
        continue_final_message: leave the last message open, for the reply to go on.
        variables: `chat_template_kwargs`.
        param: the field of the request that has the messages, for errors.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = {}
    param: str = "messages"


class Rendering(msgspec.Struct, frozen=True):
    """A template and what it renders.

    Attributes:
        special_tokens: the tokenizer's `special_tokens_map`, which templates may use by name.
        max_chars: a longer text is refused.
        takes_text: the arguments of calls are JSON for the template, and not objects.
    """

    template: str
    conversation: Conversation
    special_tokens: Mapping[str, Any] = {}
    max_chars: int = MAX_CHARS
    takes_text: bool = False


def render(rendering: Rendering) -> str:
    """The text of a prompt.

    An assistant's message of calls alone has no content, or null where the template asks for that.
    A template that fails at it gets an empty text.

    Raises:
        ApiError: the template refuses the conversation, or the text is too long.
        MemoryError: rendering took too much.
    """
    conversation = rendering.conversation
    messages = known_roles(conversation.messages, rendering.template)
    if rendering.takes_text:
        messages = [_with_text_arguments(message) for message in messages]
    lacks_content = any("content" not in message for message in messages)
    if lacks_content and _ASKS_FOR_NONE.search(rendering.template):
        messages = [{"content": None} | message for message in messages]
    try:
        try:
            text = _rendered(rendering, messages)
        except Exception as error:
            if not lacks_content or isinstance(error, MemoryError):
                raise
            empty = [{**message, "content": message.get("content") or ""} for message in messages]
            text = _rendered(rendering, empty)
    except MemoryError:
        raise
    except Exception as error:  # whatever a template, or what it is given, leads to
        words = f"the chat template refused: {error}"
        raise bad_request(conversation.param, words) from error
    if len(text) > rendering.max_chars:
        raise bad_request(
            conversation.param,
            f"the chat template must give at most {rendering.max_chars} characters, "
            f"got {len(text)}",
        )
    return text


def known_roles(messages: Sequence[Message], source: str) -> list[Message]:
    """The same messages, a developer's as the system's where the template does not know them."""
    if DEVELOPER in source:
        return list(messages)
    return [m | {"role": "system"} if m.get("role") == DEVELOPER else m for m in messages]


def _rendered(rendering: Rendering, messages: list[Message]) -> str:
    """What the template makes of messages; raises whatever it leads to."""
    from transformers.utils.chat_template_utils import render_jinja_template

    conversation = rendering.conversation
    rendered, _ = render_jinja_template(
        conversations=[messages],
        tools=None if conversation.tools is None else list(conversation.tools),
        documents=None if conversation.documents is None else list(conversation.documents),
        chat_template=rendering.template,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        **{**rendering.special_tokens, **conversation.variables},
    )
    text: str = rendered[0]
    return text


def _with_text_arguments(message: Message) -> Message:
    """A message whose calls have their arguments as JSON."""
    calls = [
        {**call, "function": {**call["function"], "arguments": _as_json(call)}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _as_json(call: Mapping[str, Any]) -> str:
    return json.dumps(call["function"]["arguments"], ensure_ascii=False)


def learn_formats(rendering: Rendering, ends: Collection[str]) -> Formats:
    """The formats of a template, which renders conversations for that.

    Args:
        rendering: the template and what else it takes; its conversation is not rendered.
        ends: texts of the tokens that end a reply.
    """

    def render_probe(
        messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, generates: bool
    ) -> str:
        conversation = Conversation(messages, tools, add_generation_prompt=generates)
        return render(replace(rendering, conversation=conversation, takes_text=False))

    return formats_of(rendering.template, render_probe, ends)


def make_ready() -> None:
    """Import what rendering takes, in a process for such work: seconds that no call should pay."""
    prepare_for_tokenizers(trust_remote_code=False)
    render(Rendering("", Conversation([{}])))


def is_large(value: Any, most: int) -> bool:
    """Whether parsed JSON has more values and characters than `most`; it looks no further."""
    left, open_values = most, [value]
    while open_values:
        value = open_values.pop()
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, Mapping):
            left -= 2 * len(value)
            if left >= 0:
                open_values += value.values()
        elif isinstance(value, list | tuple):
            left -= len(value)
            if left >= 0:
                open_values += value
        if left < 0:
            return True
    return False
