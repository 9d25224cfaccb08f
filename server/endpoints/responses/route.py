"""`POST /v1/responses`."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.conversation.prompt import conversation_prompt
from server.conversation.shaped_render import EventWriter, ShapedRenderer
from server.endpoints.answer import answer
from server.endpoints.plain import PlainRoute
from server.endpoints.responses.reply_schema import ResponseReply
from server.endpoints.responses.schema import ResponsesRequest
from server.endpoints.responses.shape import ResponseShape
from server.endpoints.responses.spec import response_conversation, response_spec
from server.generation.prepare import prepare
from server.http.account import reply_id
from server.schema.openapi import NAMED_EVENTS, describes

router = APIRouter(tags=["generation"], route_class=PlainRoute)


@router.post("/v1/responses", **describes(ResponsesRequest, ResponseReply, stream=NAMED_EVENTS))
async def create_response(request: Request) -> Response:
    """Reply to a conversation, as OpenAI's Responses API has it."""
    context = context_of(request)
    body = await context.bodies.read(request, ResponsesRequest)
    prompt = await conversation_prompt(response_conversation(body), context)
    spec = await response_spec(
        body, prompt, context, reply_id("resp_", body.request_id, request.scope)
    )
    prepared = await prepare(spec, context)
    shape = ResponseShape(body, prepared, prompt.call_id_chars)
    renderer = ShapedRenderer(prepared, prompt, context.tokenizer, shape)
    make_writer = partial(EventWriter, renderer=renderer)
    return await answer(prepared, renderer, request, context, make_writer)
