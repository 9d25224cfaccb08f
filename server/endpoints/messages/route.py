"""`POST /v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.conversation.prepare import count_tokens
from server.conversation.translated import EventWriter
from server.endpoints.answer import answer
from server.endpoints.chat.route import prepare
from server.endpoints.messages.reply_schema import AnthropicError, MessageReply, TokenCount
from server.endpoints.messages.request import ChatOfMessages
from server.endpoints.messages.schema import CountTokensRequest, MessagesRequest
from server.endpoints.messages.shape import message_renderer
from server.endpoints.plain import PlainRoute
from server.errors import ApiError, json_response
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
    wanted = ChatOfMessages(body)
    try:
        chat = await prepare(wanted.body, request, body.max_tokens)
    except ApiError as error:
        raise wanted.told(error) from None
    renderer = message_renderer(chat, body, wanted, context.tokenizer)
    make_writer = partial(EventWriter, renderer=renderer)
    return await answer(renderer.prepared, renderer, request, context, make_writer)


@router.post(
    "/v1/messages/count_tokens",
    **describes(CountTokensRequest, TokenCount, error=AnthropicError),
)
async def count_message_tokens(request: Request) -> Response:
    """Count the tokens that a conversation's prompt has."""
    context = context_of(request)
    body = await context.bodies.read(request, CountTokensRequest)
    wanted = ChatOfMessages(body)
    try:
        count = await count_tokens(
            wanted.body,
            context.template,
            config=context.config,
            tokenizer=context.tokenizer,
            parsers=context.parsers,
        )
    except ApiError as error:
        raise wanted.told(error) from None
    return json_response({"input_tokens": count})
