"""The model's chat template: a conversation rendered as the text of a prompt, off the event loop.

Most are rendered on one thread; large ones where large bodies are parsed. A request's own template
is a stranger's program: it runs in a process of its own, bounded in time and memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from engine.arrays import Int32Array
from server.conversation.parsing.learning.learn import Formats, formats_by_name
from server.conversation.replay import replayed_ids
from server.conversation.template_rendering import (
    MAX_CHARS,
    Conversation,
    Message,
    Rendering,
    is_large,
    learn_formats,
    make_ready,
    render,
)
from server.errors import ApiError, bad_request, too_long
from server.generation.spec import Truncation
from server.response_store.records import GeneratedRun
from server.schema.base import shown
from server.schema.messages import ROLES
from server.text.tokenizer import Tokenizer
from server.work.bounded import BoundedThread
from server.work.processes import CallEndedError, Preparation, ProcessPool

logger = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT_S = 10.0
"""A template of a model takes some hundred microseconds a message."""
LONG_CHARS = 1 << 15
"""Longer prompts are tokenised on a thread of their own: nothing can interrupt that, and all chats
wait for the thread that renders."""
LARGE = 1 << 17
"""A conversation of more characters and values is rendered in a process: its template may spend
long inside one operation."""
OWN_BYTES = 512 << 20
"""Memory that a request's own template may take."""

RESERVED_KWARGS = frozenset(
    (
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("conversations", "chat_template", "return_assistant_tokens_mask"),
    )
)
"""Names that `chat_template_kwargs` may not set: the request has fields for them, or nobody has."""

END_CHARS = 256
"""Characters of a prompt's end that show whether it leaves thoughts open."""


MAX_TEMPLATES = 4096
"""Of so many templates it is remembered what they take."""


class RenderedPrompt(NamedTuple):
    """A conversation as a prompt.

    Attributes:
        token_ids: int32 [prompt_len].
        end: the last `END_CHARS` characters of its text.
        num_chars: of its text.
    """

    token_ids: Int32Array
    end: str
    num_chars: int


class ChatTemplate:
    """Renders conversations, off the event loop.

    Args:
        source: the template, or several by name; None where the model has none.
        special_tokens: the tokenizer's `special_tokens_map`, which templates may use by name.
        large: where large conversations are rendered; its processes are made ready for that.
        ends: texts of the tokens that end a reply.
        trusts_requests: requests may bring templates of their own.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        special_tokens: Mapping[str, Any],
        large: ProcessPool,
        *,
        ends: Collection[str] = (),
        trusts_requests: bool = False,
        timeout_s: float = TIMEOUT_S,
        max_chars: int = MAX_CHARS,
    ) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._large = large
        self._ends = frozenset(ends)
        self._trusts_requests = trusts_requests
        self._with_text_arguments: set[int] = set()  # hashes of templates
        self._timeout_s = timeout_s
        self._max_chars = max_chars
        self._thread = BoundedThread("chat-template")
        self._strangers = ProcessPool(
            "templates of requests",
            1,
            setup=lambda: Preparation(make_ready),
            memory_bytes=OWN_BYTES,
        )

    def source(self, *, with_tools: bool, own: str | None = None, param: str = "messages") -> str:
        """The template a conversation is rendered by; raises `ApiError` for none, or a stranger's.

        Args:
            with_tools: of several templates, prefer the one named `tool_use`.
            own: the request's template, or the name of one of the model's.
            param: the field of the request that has the messages, for errors.
        """
        several = self._source if isinstance(self._source, Mapping) else {}
        if own is not None:
            if own not in several and not self._trusts_requests:
                raise bad_request(
                    "chat_template",
                    "chat_template must name a template of the model: templates of requests need "
                    "--trust-request-chat-template",
                )
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
            param,
            "the model has no chat template: start the server with --chat-template FILE, "
            "or use /v1/completions",
        )

    def sources(self) -> list[str]:
        """The model's templates."""
        several = self._source if isinstance(self._source, Mapping) else {"": self._source}
        return [source for source in several.values() if source is not None]

    async def formats(self, source: str) -> Formats:
        """How a model with this template writes calls and thoughts.

        Templates that cannot be tried are looked at alone. What the template takes for the
        arguments of calls is noted for its next renderings.
        """
        rendering, pool = self._planned(source, Conversation([]))
        run = self._thread.run if pool is None else pool.run
        try:
            found = await self._bounded(run(self._timeout_s, learn_formats, rendering, self._ends))
        except ApiError as error:
            logger.warning("the formats of calls and thoughts are not learned: %s", error.message)
            found = formats_by_name(source)
        if found.takes_text and len(self._with_text_arguments) < MAX_TEMPLATES:
            self._with_text_arguments.add(hash(source))
        return found

    async def encode(
        self,
        source: str,
        conversation: Conversation,
        tokenizer: Tokenizer,
        *,
        runs: Sequence[GeneratedRun] = (),
        truncation: Truncation | None = None,
        max_model_len: int | None = None,
    ) -> RenderedPrompt:
        """The conversation as a prompt; raises `ApiError` as `render`.

        Args:
            runs: what the model generated in it, in order.
            truncation: the prompt is cut.
            max_model_len: a text that surely has more tokens is refused without counting them; None
                to count those of any.
        """

        def ids_of(text: str) -> Int32Array:
            if truncation is None:
                return replayed_ids(text, tokenizer, runs)
            most, side = truncation.max_tokens, truncation.side
            cut = tokenizer.encode(
                text, add_special_tokens=False, max_tokens=most, truncation_side=side
            )
            return np.array(cut, dtype=np.int32)

        def encoded(rendering: Rendering) -> tuple[str, Int32Array | None]:
            text = render(rendering)
            return text, ids_of(text) if len(text) <= LONG_CHARS else None

        token_ids: Int32Array | None = None
        rendering, pool = self._planned(source, conversation)
        if pool is None:
            call = self._thread.run(self._timeout_s, encoded, rendering)
            text, token_ids = await self._bounded(call, conversation.param)
        else:
            call_apart = pool.run(self._timeout_s, render, rendering)
            text = await self._bounded(call_apart, conversation.param)
        _check_roles(conversation.messages, text, conversation.param)
        if token_ids is None:
            limit = max_model_len if truncation is None else None
            if limit is not None and (least := tokenizer.min_tokens(text)) > limit:
                raise too_long(conversation.param, f"at least {least}", limit)
            token_ids = await asyncio.to_thread(ids_of, text)
        if not len(token_ids):
            raise bad_request(conversation.param, "the chat template gave an empty prompt")
        return RenderedPrompt(token_ids, text[-END_CHARS:], len(text))

    async def text(self, source: str, conversation: Conversation) -> str:
        """The prompt's text; raises `ApiError` for what the template refuses."""
        rendering, pool = self._planned(source, conversation)
        run = self._thread.run if pool is None else pool.run
        return await self._bounded(run(self._timeout_s, render, rendering), conversation.param)

    def _planned(
        self, source: str, conversation: Conversation
    ) -> tuple[Rendering, ProcessPool | None]:
        """What is to be rendered, and where: None for the thread, which has most done sooner."""
        takes_text, about = hash(source) in self._with_text_arguments, conversation
        special, max_chars = self._special_tokens, self._max_chars
        rendering = Rendering(source, conversation, special, max_chars, takes_text)
        if not self._is_known(source):
            return rendering, self._strangers
        given = [about.messages, about.tools, about.documents, about.variables]
        return rendering, self._large if is_large(given, LARGE) else None

    def _is_known(self, template: str) -> bool:
        if isinstance(self._source, Mapping):
            return template in self._source.values()
        return template == self._source

    async def _bounded(self, call: Awaitable[T], param: str = "messages") -> T:
        try:
            return await call
        except TimeoutError:
            words = f"took longer than {self._timeout_s:g} s"
        except (MemoryError, CallEndedError):
            words = "took too much memory"
        raise bad_request(param, f"the chat template {words}")

    def close(self) -> None:
        """End the thread and the processes of its own."""
        self._thread.close()
        self._strangers.close()


def check_variables(variables: Mapping[str, Any]) -> None:
    """Raise a 400 for `chat_template_kwargs` that the request has fields for."""
    if reserved := sorted(RESERVED_KWARGS & variables.keys()):
        words = f"chat_template_kwargs may not set {', '.join(reserved)}"
        raise bad_request("chat_template_kwargs", words)


def _check_roles(messages: Sequence[Message], text: str, param: str) -> None:
    """Raise a 400 for a message of a role of its own that the template leaves out of the text."""
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role in ROLES or not isinstance(content, str) or content.strip() in text:
            continue
        where = f"{param}[{i}].role"
        words = f"{where} must be a role that the chat template knows, got {shown(role)}"
        raise bad_request(where, words)
