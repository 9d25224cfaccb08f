"""`POST /v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.conversation.parsed_render import chat_renderer
from server.conversation.prompt import conversation_prompt
from server.endpoints.answer import answer
from server.endpoints.chat.reply_schema import ChatReply
from server.endpoints.chat.schema import ChatRequest
from server.endpoints.chat.spec import chat_conversation, chat_spec, echoed_text
from server.endpoints.plain import PlainRoute
from server.generation.generation import Generation
from server.generation.prepare import prepare
from server.http.account import reply_id
from server.schema.openapi import CHUNKS, describes

router = APIRouter(tags=["generation"], route_class=PlainRoute)


@router.post("/v1/chat/completions", **describes(ChatRequest, ChatReply, stream=CHUNKS))
async def create_chat_completion(request: Request) -> Response:
    """Reply to a conversation."""
    context = context_of(request)
    body = await context.bodies.read(request, ChatRequest)
    conversation = chat_conversation(body, context.info)
    prompt = await conversation_prompt(conversation, context)
    spec = await chat_spec(
        body, prompt, context, reply_id("chatcmpl-", body.request_id, request.scope)
    )
    prepared = await prepare(spec, context)
    shows_reasoning = body.include_reasoning is not False
    renderer = chat_renderer(
        prepared,
        prompt,
        reasoning_field=context.config.reasoning_field if shows_reasoning else None,
        echoed=echoed_text(body.messages[-1]) if body.echo else "",
        holds_reasoning=body.stream_reasoning is False,
    )
    return await answer(Generation(prepared), renderer, request)
