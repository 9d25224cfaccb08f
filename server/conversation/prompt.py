"""A conversation as a prompt: rendered by the template, with what its replies are held to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from engine.arrays import Int32Array
from server.conversation.constraints import reply_constraints
from server.conversation.messages import known_roles
from server.conversation.parsing.reader import ReplyParsing
from server.conversation.rendering import Conversation
from server.conversation.served import ServedChatModel
from server.conversation.spec import ConversationSpec, ToolSpec
from server.conversation.template import RESERVED_KWARGS, RenderedPrompt
from server.conversation.tools import (
    check_choice,
    check_format,
    check_known,
    shown_tools,
    template_tools,
    tool_types,
)
from server.errors import bad_request
from server.schema.checks import check_model
from server.structured.spec import Constraints


class ConversationPrompt(msgspec.Struct, frozen=True):
    """A conversation as far as it is known before the engine is asked.

    Attributes:
        model: the name that the reply carries.
        token_ids: int32 [prompt_len].
        parsing: how replies are taken apart; None where all of them is content.
        max_calls: later calls of a message are left out; None for no limit.
        num_chars: of the prompt's text.
    """

    model: str
    token_ids: Int32Array
    parsing: ReplyParsing | None
    constraints: Constraints
    max_calls: int | None
    num_chars: int

    @property
    def call_id_chars(self) -> int | None:
        """The length of calls' ids in the model's format; None for the usual."""
        tools = None if self.parsing is None else self.parsing.graph.tools
        return tools.id_chars if tools else None


class _Rendered(NamedTuple):
    """A prompt, the template that made it, and the tools that it shows."""

    source: str
    tools: Sequence[ToolSpec]
    prompt: RenderedPrompt


async def conversation_prompt(
    spec: ConversationSpec, served: ServedChatModel
) -> ConversationPrompt:
    """Make a conversation ready to be continued; raises `ApiError` for what cannot be served."""
    model = check_model(spec.model, served.config, served.engine.state)
    source, tools, prompt = await _render_for_reply(spec, served, served.info.max_model_len)
    parsing = None
    if spec.generates:
        continued = spec.messages[-1].get("content", "") if spec.template.continues else ""
        find_parsing = partial(
            served.parsers.parsing,
            source,
            tool_types(tools) if tools else None,
            prompt.end,
            continued=continued,
            shows_special=spec.shows_special,
            is_held_to_calls=spec.tool_choice == "required",
        )
        parsing = find_parsing()
    constraints = await reply_constraints(spec, source, parsing, served)
    if parsing is not None and not spec.separates_reasoning:
        parsing = find_parsing(separates_reasoning=False)
    return ConversationPrompt(
        model, prompt.token_ids, parsing, constraints, spec.max_calls, prompt.num_chars
    )


async def count_tokens(spec: ConversationSpec, served: ServedChatModel) -> int:
    """The number of tokens of a conversation's prompt, however many; raises `ApiError`."""
    check_model(spec.model, served.config, served.engine.state)
    return len((await _render_for_reply(spec, served)).prompt.token_ids)


async def _render_for_reply(
    spec: ConversationSpec, served: ServedChatModel, max_model_len: int | None = None
) -> _Rendered:
    """Render a conversation whose replies can be read.

    Args:
        max_model_len: as for `ChatTemplate.encode`.
    """
    excludes = served.config.exclude_tools_when_none
    asks = bool(spec.tools) and not (excludes and spec.tool_choice == "none")
    source = _source(spec, served, with_tools=asks)
    await served.parsers.learn(source, served.template.formats)
    check_choice(spec)
    check_format(spec.callable_tools, source, served.parsers)
    tools = shown_tools(spec, source, served.parsers, excludes=excludes)
    return _Rendered(source, tools, await _encode(spec, source, tools, served, max_model_len))


async def render_tokens(spec: ConversationSpec, served: ServedChatModel) -> Int32Array:
    """The ids of a conversation's prompt, int32 [prompt_len], where no reply is asked for."""
    check_model(spec.model, served.config, served.engine.state)
    source = _source(spec, served, with_tools=bool(spec.tools))
    check_known(spec.tools, source)
    return (await _encode(spec, source, spec.tools, served)).token_ids


def _source(spec: ConversationSpec, served: ServedChatModel, *, with_tools: bool) -> str:
    """The template that a conversation is rendered by; raises `ApiError`."""
    own, template = spec.template.source, served.template
    trusts = served.config.trust_request_chat_template
    if own is not None and not template.names(own) and not trusts:
        raise bad_request(
            "chat_template",
            "chat_template must name a template of the model: templates of requests need "
            "--trust-request-chat-template",
        )
    return template.source(with_tools=with_tools, own=own, param=spec.names["messages"])


async def _encode(
    spec: ConversationSpec,
    source: str,
    tools: Sequence[ToolSpec],
    served: ServedChatModel,
    max_model_len: int | None = None,
) -> RenderedPrompt:
    options = spec.template
    if reserved := sorted(RESERVED_KWARGS & options.variables.keys()):
        raise bad_request(
            "chat_template_kwargs", f"chat_template_kwargs may not set {', '.join(reserved)}"
        )
    conversation = Conversation(
        messages=known_roles(spec.messages, source),
        param=spec.names["messages"],
        tools=template_tools(tools),
        documents=options.documents,
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continues,
        variables=options.variables,
    )
    return await served.template.encode(
        source,
        conversation,
        served.tokenizer,
        runs=spec.runs,
        truncation=spec.truncation,
        max_model_len=max_model_len,
    )
