"""`POST /v1/completions`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.endpoints.answer import answer
from server.endpoints.completions.reply_schema import CompletionReply
from server.endpoints.completions.schema import CompletionRequest
from server.endpoints.completions.spec import completion_spec
from server.endpoints.plain import PlainRoute
from server.generation.generation import Generation
from server.generation.prepare import prepare
from server.generation.render import Renderer
from server.http.account import reply_id
from server.schema.openapi import CHUNKS, describes

router = APIRouter(tags=["generation"], route_class=PlainRoute)


@router.post("/v1/completions", **describes(CompletionRequest, CompletionReply, stream=CHUNKS))
async def create_completion(request: Request) -> Response:
    """Continue one or many prompts."""
    context = context_of(request)
    body = await context.bodies.read(request, CompletionRequest)
    spec = await completion_spec(body, context, reply_id("cmpl-", body.request_id, request.scope))
    prepared = await prepare(spec, context)
    return await answer(Generation(prepared), Renderer(prepared), request)
