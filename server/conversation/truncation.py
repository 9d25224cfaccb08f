"""Conversations that are too long for the context: the oldest turns are left out.

What stays is a conversation still: it begins with the system's messages and a user's, and outputs
of tools stay with their calls. A last turn that is too long by itself loses its oldest calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from server.conversation.prompt import ConversationPrompt, conversation_prompt
from server.conversation.served import ServedChatModel
from server.conversation.spec import ConversationSpec
from server.conversation.template_rendering import Message
from server.errors import TOO_LONG, ApiError, too_long

_SHARE = 8
"""Of the context so many parts, less one, may be the prompt where no limit of the reply is asked
for."""


async def fitting_prompt(
    spec: ConversationSpec, served: ServedChatModel, max_tokens: int | None
) -> ConversationPrompt:
    """The prompt of as much of a conversation as leaves room for a reply.

    Args:
        max_tokens: limit of the reply; None for none.

    Raises:
        ApiError: its last turn alone does not fit; or as `conversation_prompt`.
    """
    context = served.info.max_model_len
    room = context - (context // _SHARE if max_tokens is None else min(max_tokens, context - 1))
    found = await _prompt(spec, served, room)
    if found is not None:
        return found
    shorter = shortened(spec.messages)
    low, high = 0, len(shorter)  # of `shorter[:low]` none fits, all from `high` on do
    while low < high:
        middle = (low + high) // 2
        messages = shorter[middle].of(spec.messages)
        prompt = await _prompt(replace(spec, messages=messages), served, room)
        if prompt is None:
            low = middle + 1
        else:
            found, high = prompt, middle
    if found is None:
        raise too_long(spec.names["messages"], f"more than {room}", context)
    return found


async def _prompt(
    spec: ConversationSpec, served: ServedChatModel, room: int
) -> ConversationPrompt | None:
    """The prompt of all messages; None where it takes more than `room` tokens."""
    try:
        prompt = await conversation_prompt(spec, served)
    except ApiError as error:
        if error.code != TOO_LONG:
            raise
        return None
    return prompt if len(prompt.token_ids) <= room else None


class Shorter(NamedTuple):
    """The first messages of a conversation, one more of them, and all from some place on.

    Attributes:
        num_first: of the system's messages.
        asked: the place of the user's message that stays; None for none.
        start: where those begin that follow.
    """

    num_first: int
    asked: int | None
    start: int

    def of(self, messages: Sequence[Message]) -> list[Message]:
        """What it is of a conversation."""
        asked = () if self.asked is None else (messages[self.asked],)
        return [*messages[: self.num_first], *asked, *messages[self.start :]]


def shortened(messages: Sequence[Message]) -> list[Shorter]:
    """Shorter and shorter conversations of the same messages."""
    num_first = 0
    while num_first < len(messages) and messages[num_first]["role"] in ("system", "developer"):
        num_first += 1
    rest = range(num_first + 1, len(messages))
    users = [i for i in rest if messages[i]["role"] == "user"]
    found = [Shorter(num_first, None, i) for i in users]
    last = users[-1] if users else num_first
    if last < len(messages) and messages[last]["role"] == "user":
        later = (i for i in range(last + 2, len(messages)) if messages[i]["role"] == "assistant")
        found += [Shorter(num_first, last, i) for i in later]
    return found
