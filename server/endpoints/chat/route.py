"""`POST /v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.conversation.parsed_render import make_renderer
from server.conversation.prepare import PreparedChat, prepare_chat
from server.endpoints.answer import answer
from server.endpoints.chat.reply_schema import ChatReply
from server.endpoints.chat.schema import ChatRequest
from server.endpoints.plain import PlainRoute
from server.http.account import account_of
from server.schema.openapi import CHUNKS, describes

router = APIRouter(tags=["generation"], route_class=PlainRoute)


@router.post("/v1/chat/completions", **describes(ChatRequest, ChatReply, stream=CHUNKS))
async def create_chat_completion(request: Request) -> Response:
    """Reply to a conversation."""
    context = context_of(request)
    body = await context.bodies.read(request, ChatRequest)
    chat = await prepare(body, request)
    renderer = make_renderer(chat, body, context.tokenizer, context.config.reasoning_field)
    return await answer(chat.request, renderer, request, context)


async def prepare(
    body: ChatRequest, request: Request, most_tokens: int | None = None
) -> PreparedChat:
    """The chat made ready, with what the server knows besides; raises `ApiError`.

    Args:
        most_tokens: as for `prepare_chat`.
    """
    context = context_of(request)
    return await prepare_chat(
        body,
        context.template,
        config=context.config,
        info=context.engine.info,
        tokenizer=context.tokenizer,
        grammars=context.grammars,
        parsers=context.parsers,
        request_id=account_of(request.scope).request_id,
        most_tokens=most_tokens,
    )
