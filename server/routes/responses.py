"""`POST /v1/responses`."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.chat.translated import EventWriter
from server.context import context_of
from server.errors import ApiError
from server.responses.request import ChatOfResponse
from server.responses.shape import response_renderer
from server.routes.answer import answer
from server.routes.chat import prepare
from server.routes.plain import PlainRoute
from server.schema.agent_replies import ResponseReply
from server.schema.openapi import NAMED_EVENTS, describes
from server.schema.responses import ResponsesRequest

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
