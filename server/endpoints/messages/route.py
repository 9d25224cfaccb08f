"""`POST /v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.conversation.prompt import conversation_prompt, count_tokens
from server.conversation.shaped_render import EventWriter, ShapedRenderer
from server.endpoints.answer import answer
from server.endpoints.messages.reply_schema import AnthropicError, MessageReply, TokenCount
from server.endpoints.messages.schema import CountTokensRequest, MessagesRequest
from server.endpoints.messages.shape import MessageShape
from server.endpoints.messages.spec import (
    check_not_stored,
    message_conversation,
    message_spec,
    shows_thoughts,
)
from server.endpoints.plain import PlainRoute
from server.errors import json_response
from server.generation.generation import Generation
from server.generation.prepare import prepare
from server.http.account import reply_id
from server.schema.openapi import NAMED_EVENTS, describes

router = APIRouter(tags=["generation"], route_class=PlainRoute)


@router.post(
    "/v1/messages",
    **describes(MessagesRequest, MessageReply, stream=NAMED_EVENTS, error=AnthropicError),
)
async def create_message(request: Request) -> Response:
    """Reply to a conversation, as Anthropic's Messages API has it."""
    context = context_of(request)
    body = await context.bodies.read(request, MessagesRequest)
    check_not_stored(body)
    prompt = await conversation_prompt(message_conversation(body), context)
    spec = await message_spec(
        body, prompt, context, reply_id("msg_", body.request_id, request.scope)
    )
    prepared = await prepare(spec, context)
    shape = MessageShape(
        prepared, shows_thoughts=shows_thoughts(body.thinking), id_chars=prompt.call_id_chars
    )
    renderer = ShapedRenderer(prepared, prompt, shape)
    return await answer(Generation(prepared), renderer, request, EventWriter)


@router.post(
    "/v1/messages/count_tokens",
    **describes(CountTokensRequest, TokenCount, error=AnthropicError),
)
async def count_message_tokens(request: Request) -> Response:
    """Count the tokens that a conversation's prompt has."""
    context = context_of(request)
    body = await context.bodies.read(request, CountTokensRequest)
    count = await count_tokens(message_conversation(body), context)
    return json_response({"input_tokens": count})
