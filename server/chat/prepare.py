"""Makes a chat request ready: its conversation rendered, all else as a completion request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.config import EngineInfo
from engine.request import Int32Array
from server.chat.messages import content_text, template_messages
from server.chat.template import RESERVED_KWARGS, ChatTemplate, Conversation
from server.completions.params import num_top
from server.completions.prepare import PreparedRequest, prepare_request
from server.config import ServerConfig
from server.errors import bad_request
from server.schema.chat import ChatRequest, TemplateFields
from server.schema.checks import check_model
from server.schema.completions import CompletionRequest
from server.schema.generation import GenerationFields
from server.schema.messages import ChatMessage
from server.text.tokenizer import Tokenizer

_SHARED = tuple(GenerationFields.model_fields)


async def prepare_chat(
    body: ChatRequest,
    template: ChatTemplate,
    *,
    config: ServerConfig,
    info: EngineInfo,
    tokenizer: Tokenizer,
    request_id: str | None = None,
    drawn_seed: int | None = None,
) -> PreparedRequest:
    """Check and convert a request; raises `ApiError` for what cannot be served.

    Args:
        request_id, drawn_seed: as for `prepare_request`.
    """
    check_model(body.model, config)
    _check_logprobs(body, config, info)
    token_ids = await render_prompt(
        body.messages, body, template, config=config, tokenizer=tokenizer
    )
    return await prepare_request(
        _completion_of(body, token_ids),
        config=config,
        info=info,
        tokenizer=tokenizer,
        request_id=request_id,
        drawn_seed=drawn_seed,
        id_prefix="chatcmpl",
        default_max_tokens=info.max_model_len,
    )


async def render_prompt(
    messages: Sequence[ChatMessage],
    body: TemplateFields,
    template: ChatTemplate,
    *,
    config: ServerConfig,
    tokenizer: Tokenizer,
) -> Int32Array:
    """The ids of a conversation's prompt, int32 [prompt_len]; raises `ApiError`."""
    own = body.chat_template
    if own is not None and not template.names(own) and not config.trust_request_chat_template:
        raise bad_request(
            "chat_template",
            "chat_template must name a template of the model: templates of requests need "
            "--trust-request-chat-template",
        )
    source = template.source(with_tools=False, own=own)
    conversation = _conversation(messages, body, source)
    return await template.encode(source, conversation, tokenizer)


def _conversation(
    messages: Sequence[ChatMessage], body: TemplateFields, source: str
) -> Conversation:
    continues = bool(body.continue_final_message)
    generates = body.add_generation_prompt is not False
    if continues and body.add_generation_prompt:
        raise bad_request(
            "continue_final_message",
            "continue_final_message needs add_generation_prompt to be false",
        )
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if reserved := sorted(RESERVED_KWARGS & variables.keys()):
        raise bad_request(
            "chat_template_kwargs", f"chat_template_kwargs may not set {', '.join(reserved)}"
        )
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return Conversation(
        messages=template_messages(messages, source),
        documents=body.documents,
        add_generation_prompt=generates and not continues,
        continue_final_message=continues,
        variables=variables,
    )


def _check_logprobs(body: ChatRequest, config: ServerConfig, info: EngineInfo) -> None:
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs", "top_logprobs needs logprobs to be true")
    num_top("top_logprobs", body.top_logprobs, config, info)


def _completion_of(body: ChatRequest, token_ids: Int32Array) -> CompletionRequest:
    """The completion request that draws the reply; its fields were checked as the chat's."""
    fields = {name: getattr(body, name) for name in _SHARED}
    fields["max_tokens"] = _max_tokens(body)
    fields["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    return CompletionRequest.model_construct(prompt=[token_ids], **fields)


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
