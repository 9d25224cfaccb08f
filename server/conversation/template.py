"""The model's chat template: a conversation rendered as the text of a prompt.

Rendering is transformers' own (`render_jinja_template`): its sandbox, its cache of compiled
templates, its treatment of `continue_final_message`. So a prompt is what `apply_chat_template`
makes of the same messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from engine.arrays import Int32Array
from server.errors import ApiError, bad_request
from server.http.bounded import BoundedThread
from server.schema.checks import too_long
from server.text.tokenizer import Tokenizer

T = TypeVar("T")

TIMEOUT_S = 10.0
"""A template of a model takes some hundred microseconds a message."""
MAX_CHARS = 16 << 20
"""A rendered prompt has at most; longer than any context that is served."""
LONG_CHARS = 1 << 15
"""Longer prompts are tokenised on a thread of their own: nothing can interrupt that, and all chats
wait for the thread that renders."""

RESERVED_KWARGS = frozenset(
    (
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("conversations", "chat_template", "return_assistant_tokens_mask"),
    )
)
"""Names that `chat_template_kwargs` may not set: the request has fields for them, or nobody has."""

END_CHARS = 256
"""Characters of a prompt's end that tell whether it leaves thoughts open."""

Message = dict[str, Any]


class Conversation(msgspec.Struct, frozen=True):
    """What a template is given.

    Attributes:
        messages: as transformers takes them; no key has the value None.
        tools, documents: JSON objects; None where the request has none.
        add_generation_prompt: end with the beginning of a reply.
        continue_final_message: leave the last message open, for the reply to go on.
        variables: `chat_template_kwargs`.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = {}


class RenderedPrompt(NamedTuple):
    """A conversation as a prompt.

    Attributes:
        token_ids: int32 [prompt_len].
        end: the last `END_CHARS` characters of its text.
    """

    token_ids: Int32Array
    end: str


class ChatTemplate:
    """Renders conversations, off the event loop.

    Args:
        source: the template, or several by name; None where the model has none.
        special_tokens: the tokenizer's `special_tokens_map`, which templates may use by name.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        special_tokens: Mapping[str, Any],
        *,
        timeout_s: float = TIMEOUT_S,
        max_chars: int = MAX_CHARS,
    ) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._timeout_s = timeout_s
        self._max_chars = max_chars
        self._thread = BoundedThread("chat-template")

    def source(self, *, with_tools: bool, own: str | None = None) -> str:
        """The template a conversation is rendered by; raises `ApiError` where there is none.

        Args:
            with_tools: of several templates, prefer the one named `tool_use`.
            own: the request's template, or the name of one of the model's.
        """
        several = self._source if isinstance(self._source, Mapping) else {}
        if own is not None:
            return several.get(own, own)
        if isinstance(self._source, str):
            return self._source
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in several:
                return several[name]
        if several:
            names = ", ".join(sorted(several))
            raise bad_request(
                "chat_template", f"the model has several chat templates; name one of: {names}"
            )
        raise bad_request(
            "messages",
            "the model has no chat template: start the server with --chat-template FILE, "
            "or use /v1/completions",
        )

    def names(self, name: str) -> bool:
        """Whether this is the name of one of the model's templates."""
        return isinstance(self._source, Mapping) and name in self._source

    async def encode(
        self,
        source: str,
        conversation: Conversation,
        tokenizer: Tokenizer,
        *,
        max_model_len: int | None = None,
    ) -> RenderedPrompt:
        """The conversation as a prompt; raises `ApiError` as `render`.

        Args:
            max_model_len: a text that surely has more tokens is refused without counting them; None
                to count those of any.
        """
        text, token_ids = await self._run(self._encode, source, conversation, tokenizer)
        if token_ids is None:
            if max_model_len is not None and (least := tokenizer.min_tokens(text)) > max_model_len:
                raise too_long("messages", f"at least {least}", max_model_len)
            token_ids = await asyncio.to_thread(_token_ids, text, tokenizer)
        if not len(token_ids):
            raise bad_request("messages", "the chat template gave an empty prompt")
        return RenderedPrompt(token_ids, text[-END_CHARS:])

    async def render(self, source: str, conversation: Conversation) -> str:
        """The prompt's text; raises `ApiError` for what the template refuses."""
        text = await self._run(self._render, source, conversation)
        self._check_length(text)
        return text

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        try:
            return await self._thread.run(self._timeout_s, function, *args)
        except ApiError:
            raise
        except TimeoutError:
            raise bad_request(
                "messages", f"the chat template took longer than {self._timeout_s:g} s"
            ) from None
        except Exception as error:  # whatever a template, or what it is given, leads to
            raise bad_request("messages", f"the chat template refused: {error}") from error

    def _check_length(self, text: str) -> None:
        if len(text) > self._max_chars:
            raise bad_request(
                "messages",
                f"the chat template must give at most {self._max_chars} characters, "
                f"got {len(text)}",
            )

    def _encode(
        self, source: str, conversation: Conversation, tokenizer: Tokenizer
    ) -> tuple[str, Int32Array | None]:
        """The prompt's text, and its ids unless it is long."""
        text = self._render(source, conversation)
        self._check_length(text)
        return text, _token_ids(text, tokenizer) if len(text) <= LONG_CHARS else None

    def _render(self, source: str, conversation: Conversation) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered, _ = render_jinja_template(
            conversations=[list(conversation.messages)],
            tools=None if conversation.tools is None else list(conversation.tools),
            documents=None if conversation.documents is None else list(conversation.documents),
            chat_template=source,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            **{**self._special_tokens, **conversation.variables},
        )
        text: str = rendered[0]
        return text

    def close(self) -> None:
        """End the thread."""
        self._thread.close()


def _token_ids(text: str, tokenizer: Tokenizer) -> Int32Array:
    """The ids of a prompt, int32 [prompt_len]; the template has written the special tokens."""
    return np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)
