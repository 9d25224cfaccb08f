"""`POST /v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.chat.prepare import echoed_text, prepare_chat
from server.chat.render import ChatRenderer
from server.context import context_of
from server.http.account import account_of
from server.routes.answer import answer
from server.routes.plain import PlainRoute
from server.schema.chat import ChatRequest
from server.schema.chat_replies import ChatReply
from server.schema.openapi import describes

router = APIRouter(tags=["generation"], route_class=PlainRoute)


@router.post("/v1/chat/completions", **describes(ChatRequest, ChatReply, stream=True))
async def create_chat_completion(request: Request) -> Response:
    """Reply to a conversation."""
    context = context_of(request)
    body = await context.bodies.read(request, ChatRequest)
    prepared = await prepare_chat(
        body,
        context.template,
        config=context.config,
        info=context.engine.info,
        tokenizer=context.tokenizer,
        request_id=account_of(request.scope).request_id,
        drawn_seed=context.draw_seed(),
    )
    renderer = ChatRenderer(prepared, context.tokenizer, echoed_text(body))
    return await answer(prepared, renderer, request, context)
