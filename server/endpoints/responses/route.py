"""`POST /v1/responses`."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.conversation.translated import EventWriter
from server.endpoints.answer import answer
from server.endpoints.chat.route import prepare
from server.endpoints.plain import PlainRoute
from server.endpoints.responses.reply_schema import ResponseReply
from server.endpoints.responses.request import ChatOfResponse
from server.endpoints.responses.schema import ResponsesRequest
from server.endpoints.responses.shape import response_renderer
from server.errors import ApiError
from server.schema.openapi import NAMED_EVENTS, describes

router = APIRouter(tags=["generation"], route_class=PlainRoute)


@router.post("/v1/responses", **describes(ResponsesRequest, ResponseReply, stream=NAMED_EVENTS))
async def create_response(request: Request) -> Response:
    """Reply to a conversation, as OpenAI's Responses API has it."""
    context = context_of(request)
    body = await context.bodies.read(request, ResponsesRequest)
    wanted = ChatOfResponse(body)
    try:
        chat = await prepare(wanted.body, request, body.max_output_tokens)
    except ApiError as error:
        raise wanted.told(error) from None
    renderer = response_renderer(chat, body, wanted.body, context.tokenizer)
    make_writer = partial(EventWriter, renderer=renderer)
    return await answer(renderer.prepared, renderer, request, context, make_writer)
