"""`POST /generate`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.endpoints.answer import answer
from server.endpoints.plain import PlainRoute
from server.endpoints.sglang_generate.render import GenerateRenderer, GenerateWriter
from server.endpoints.sglang_generate.reply_schema import GenerateReplies
from server.endpoints.sglang_generate.schema import GenerateRequest
from server.endpoints.sglang_generate.spec import NAMES, generate_spec
from server.generation.generation import Generation
from server.generation.prepare import prepare
from server.http.account import reply_id
from server.schema.openapi import describes

router = APIRouter(tags=["generation"], route_class=PlainRoute)

STREAM = "With `stream`: objects of the same shape, then `data: [DONE]`."


@router.post("/generate", **describes(GenerateRequest, GenerateReplies, stream=STREAM))
async def generate(request: Request) -> Response:
    """Continue prompts in SGLang's shape."""
    context = context_of(request)
    body = await context.bodies.read(request, GenerateRequest)
    given = body.rid if isinstance(body.rid, str) else None
    with NAMES.used():
        spec = await generate_spec(body, context, reply_id("", given, request.scope))
        prepared = await prepare(spec, context)
    renderer = GenerateRenderer(prepared, body)
    return await answer(Generation(prepared), renderer, request, GenerateWriter)
