"""Makes a chat request ready: its conversation rendered, all else as a completion request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from engine.arrays import Int32Array
from engine.config import EngineInfo
from server.config import ServerConfig
from server.conversation.constraints import chat_constraints
from server.conversation.messages import content_text, template_messages
from server.conversation.parsing.parsers import Parsers
from server.conversation.parsing.reader import ReplyParsing
from server.conversation.renaming import renamed
from server.conversation.rendering import Conversation
from server.conversation.template import RESERVED_KWARGS, ChatTemplate, RenderedPrompt
from server.conversation.tools import (
    check_format,
    check_known,
    offered_tools,
    shown_tools,
    template_tools,
    tool_types,
)
from server.endpoints.chat.schema import ChatRequest, TemplateFields
from server.endpoints.completions.schema import CompletionRequest
from server.errors import ApiError, bad_request
from server.generation.params import num_top
from server.generation.prepare import PreparedRequest, prepare_request
from server.schema.checks import check_model
from server.schema.generation import GenerationFields
from server.schema.messages import ChatMessage
from server.schema.tools import Tool
from server.structured.checker import GrammarChecker
from server.text.tokenizer import Tokenizer

_SHARED = GenerationFields.model_fields.keys()
_DEFAULTS = vars(CompletionRequest.model_construct(prompt=[]))
_NEWER_LIMIT = ((r"max_tokens\b", "max_completion_tokens"),)
"""The name of the completion's limit where the chat has it by OpenAI's newer one."""


class PreparedChat(msgspec.Struct, frozen=True):
    """A chat request as far as it is known before the engine is asked.

    Attributes:
        parsing: how replies are taken apart; None where all of them is content.
    """

    request: PreparedRequest
    parsing: ReplyParsing | None


async def prepare_chat(
    body: ChatRequest,
    template: ChatTemplate,
    *,
    config: ServerConfig,
    info: EngineInfo,
    tokenizer: Tokenizer,
    grammars: GrammarChecker,
    parsers: Parsers,
    request_id: str | None = None,
    most_tokens: int | None = None,
) -> PreparedChat:
    """Check and convert a request; raises `ApiError` for what cannot be served.

    Args:
        request_id: as for `prepare_request`.
        most_tokens: a choice without `max_tokens` has at most so many, and the rest of the context.
    """
    _check_logprobs(body, config, info)
    source, shown, prompt = await _prompt(
        body, template, config, tokenizer, parsers, max_model_len=info.max_model_len
    )
    parsing = _parsing(body, source, shown, prompt.end, parsers)
    tools = offered_tools(body)
    constraints = await chat_constraints(body, source, tools, parsing, parsers, grammars)
    with _own_words(body):
        prepared = await prepare_request(
            _completion_of(body, prompt.token_ids, is_parsed=parsing is not None),
            config=config,
            info=info,
            tokenizer=tokenizer,
            grammars=grammars,
            constraints=constraints,
            request_id=request_id,
            id_prefix="chatcmpl",
            default_max_tokens=info.max_model_len if most_tokens is None else most_tokens,
            token_starts=parsing is not None,
        )
    return PreparedChat(prepared, parsing)


@contextmanager
def _own_words(body: ChatRequest) -> Iterator[None]:
    """Tell errors of the completion in the words of the chat."""
    try:
        yield
    except ApiError as error:
        is_newer = body.max_tokens is None and body.max_completion_tokens is not None
        raise renamed(error, _NEWER_LIMIT if is_newer else (), (), "messages") from None


async def _prompt(
    body: ChatRequest,
    template: ChatTemplate,
    config: ServerConfig,
    tokenizer: Tokenizer,
    parsers: Parsers,
    max_model_len: int | None = None,
) -> tuple[str, list[Tool], RenderedPrompt]:
    """The template of a chat, the tools it shows, and the prompt.

    Args:
        max_model_len: as for `ChatTemplate.encode`.
    """
    check_model(body.model, config)
    excludes = config.exclude_tools_when_none
    asks = bool(body.tools) and not (excludes and body.tool_choice == "none")
    source = template_source(body, template, config, with_tools=asks)
    await parsers.learn(source, template.formats)
    check_format(offered_tools(body), source, parsers)
    tools = shown_tools(body, source, parsers, excludes=excludes)
    conversation = _conversation(body.messages, body, source, tools)
    prompt = await template.encode(source, conversation, tokenizer, max_model_len=max_model_len)
    return source, tools, prompt


async def count_tokens(
    body: ChatRequest,
    template: ChatTemplate,
    *,
    config: ServerConfig,
    tokenizer: Tokenizer,
    parsers: Parsers,
) -> int:
    """The number of tokens of a chat's prompt; raises `ApiError`."""
    _, _, prompt = await _prompt(body, template, config, tokenizer, parsers)
    return len(prompt.token_ids)


def _parsing(
    body: ChatRequest,
    source: str,
    tools: Sequence[Tool],
    prompt_end: str,
    parsers: Parsers,
) -> ReplyParsing | None:
    """How the replies are taken apart; None where all of them is content."""
    if body.max_tokens == 0 or body.max_completion_tokens == 0:
        return None
    last = body.messages[-1]
    return parsers.parsing(
        source,
        tool_types(tools) if tools else None,
        prompt_end,
        continued=(content_text(last.content) or "") if body.continue_final_message else "",
        shows_special=body.skip_special_tokens is False,
    )


async def render_prompt(
    messages: Sequence[ChatMessage],
    body: TemplateFields,
    tools: Sequence[Tool],
    template: ChatTemplate,
    *,
    config: ServerConfig,
    tokenizer: Tokenizer,
) -> Int32Array:
    """The ids of a conversation's prompt, int32 [prompt_len]; raises `ApiError`."""
    source = template_source(body, template, config, with_tools=bool(tools))
    check_known(tools, source)
    conversation = _conversation(messages, body, source, tools)
    return (await template.encode(source, conversation, tokenizer)).token_ids


def template_source(
    body: TemplateFields, template: ChatTemplate, config: ServerConfig, *, with_tools: bool
) -> str:
    """The template that a request is rendered by; raises `ApiError`."""
    own = body.chat_template
    if own is not None and not template.names(own) and not config.trust_request_chat_template:
        raise bad_request(
            "chat_template",
            "chat_template must name a template of the model: templates of requests need "
            "--trust-request-chat-template",
        )
    return template.source(with_tools=with_tools, own=own)


def _conversation(
    messages: Sequence[ChatMessage], body: TemplateFields, source: str, tools: Sequence[Tool]
) -> Conversation:
    continues = bool(body.continue_final_message)
    generates = body.add_generation_prompt is not False
    if continues and body.add_generation_prompt:
        raise bad_request(
            "continue_final_message",
            "continue_final_message needs add_generation_prompt to be false",
        )
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if variables and (reserved := sorted(RESERVED_KWARGS & variables.keys())):
        raise bad_request(
            "chat_template_kwargs", f"chat_template_kwargs may not set {', '.join(reserved)}"
        )
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return Conversation(
        messages=template_messages(messages, source),
        tools=template_tools(tools),
        documents=body.documents,
        add_generation_prompt=generates and not continues,
        continue_final_message=continues,
        variables=variables,
    )


def _check_logprobs(body: ChatRequest, config: ServerConfig, info: EngineInfo) -> None:
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs", "top_logprobs needs logprobs to be true")
    num_top("top_logprobs", body.top_logprobs, config, info)


def _completion_of(
    body: ChatRequest, token_ids: Int32Array, *, is_parsed: bool
) -> CompletionRequest:
    """The completion request that draws the reply; its fields were checked as the chat's."""
    fields = dict(_DEFAULTS)
    for name in body.model_fields_set & _SHARED:  # what is not set has the same default there
        fields[name] = getattr(body, name)
    fields["prompt"] = [token_ids]
    fields["max_tokens"] = _max_tokens(body)
    fields["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    if is_parsed:  # special tokens may be markers
        fields["skip_special_tokens"] = False
    completion = CompletionRequest.__new__(CompletionRequest)  # pydantic would look at all again
    object.__setattr__(completion, "__dict__", fields)
    return completion


def _max_tokens(body: ChatRequest) -> int | None:
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        raise bad_request(
            "max_completion_tokens",
            f"max_completion_tokens must equal max_tokens ({old}) where both are given, got {new}",
        )
    return old if new is None else new


def echoed_text(body: ChatRequest) -> str:
    """What `echo` puts in front of the reply: the last message, if it is an assistant's."""
    last = body.messages[-1]
    if not body.echo or last.role != "assistant":
        return ""
    return content_text(last.content) or ""
