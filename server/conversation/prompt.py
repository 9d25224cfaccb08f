"""A conversation as a prompt: rendered by the template, with what its replies are held to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from engine.arrays import Int32Array
from server.conversation.constraints import reply_constraints
from server.conversation.parsing.reader import ReplyParsing
from server.conversation.parsing.recognise import knows_tools
from server.conversation.parsing.values import argument_types
from server.conversation.served import ServedChatModel
from server.conversation.spec import ConversationSpec, ToolSpec
from server.conversation.template import RenderedPrompt, check_variables
from server.conversation.template_rendering import Conversation
from server.conversation.tools import check_shown, check_tools
from server.schema.model_name import check_model
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
    """A prompt, the checked name of the model, the template, and the tools that it shows."""

    model: str
    source: str
    tools: Sequence[ToolSpec]
    prompt: RenderedPrompt


async def conversation_prompt(
    spec: ConversationSpec, served: ServedChatModel
) -> ConversationPrompt:
    """Make a conversation ready to be continued; raises `ApiError` for what cannot be served."""
    model, source, tools, prompt = await _rendered(spec, served, served.info.max_model_len)
    parsing = None
    if spec.generates:
        continued = spec.messages[-1].get("content", "") if spec.template.continues else ""
        find_parsing = partial(
            served.parsers.parsing,
            source,
            {tool.name: argument_types(tool.parameters) for tool in tools} or None,
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
    return len((await _rendered(spec, served)).prompt.token_ids)


async def render_tokens(spec: ConversationSpec, served: ServedChatModel) -> Int32Array:
    """The ids of a conversation's prompt, int32 [prompt_len], where no reply is asked for."""
    return (await _rendered(spec, served, is_answered=False)).prompt.token_ids


async def _rendered(
    spec: ConversationSpec,
    served: ServedChatModel,
    max_model_len: int | None = None,
    *,
    is_answered: bool = True,
) -> _Rendered:
    """Render a conversation; raises `ApiError`.

    Tools that may not be called are shown too: a conversation whose tools come and go loses its
    prefix in the cache, since they come in front of it. So with `tool_choice` "none" the prompt is
    what it is without.

    Args:
        max_model_len: as for `ChatTemplate.encode`.
        is_answered: there will be replies, which must be readable.
    """
    model = check_model(spec.model, served.config, served.engine.state)
    options, parsers, tools = spec.template, served.parsers, spec.tools
    excludes = served.config.exclude_tools_when_none and spec.tool_choice == "none"
    with_tools, param = bool(tools) and not (excludes and is_answered), spec.names["messages"]
    source = served.template.source(with_tools=with_tools, own=options.source, param=param)
    check_variables(options.variables)
    if is_answered:
        await parsers.learn(source, served.template.formats)
        check_tools(spec, source, parsers)
        tools = spec.callable_tools if spec.allowed is None else spec.tools
        if not (tools or excludes) and knows_tools(source) and parsers.tool_format(source):
            tools = spec.tools
    elif tools:
        check_shown(source)
    conversation = Conversation(
        messages=spec.messages,
        param=param,
        tools=[tool.for_template for tool in tools] or None,
        documents=options.documents,
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continues,
        variables=options.variables,
    )
    prompt = await served.template.encode(
        source,
        conversation,
        served.tokenizer,
        runs=spec.runs,
        truncation=spec.truncation,
        max_model_len=max_model_len,
    )
    return _Rendered(model, source, tools, prompt)
