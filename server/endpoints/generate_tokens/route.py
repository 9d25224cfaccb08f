"""`POST /inference/v1/generate`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.endpoints.answer import answer
from server.endpoints.generate_tokens.render import TokenChunkWriter, TokenRenderer
from server.endpoints.generate_tokens.reply_schema import GenerateTokensReply
from server.endpoints.generate_tokens.schema import GenerateTokensRequest
from server.endpoints.generate_tokens.spec import NAMES, tokens_spec
from server.endpoints.plain import PlainRoute
from server.generation.generation import Generation
from server.generation.prepare import prepare
from server.http.account import reply_id
from server.schema.openapi import CHUNKS, describes

router = APIRouter(tags=["generation"], route_class=PlainRoute)

_REPLY = describes(GenerateTokensRequest, GenerateTokensReply, stream=CHUNKS)


@router.post("/inference/v1/generate", **_REPLY)
async def generate_tokens(request: Request) -> Response:
    """Continue token ids with token ids."""
    return await generated(request, TokenRenderer)


async def generated(request: Request, kind: type[TokenRenderer]) -> Response:
    """The reply of a renderer to a request for token ids."""
    context = context_of(request)
    body = await context.bodies.read(request, GenerateTokensRequest)
    with NAMES.used():
        spec = await tokens_spec(body, context, reply_id("", body.request_id, request.scope))
        prepared = await prepare(spec, context)
    renderer = kind(prepared, body)
    return await answer(Generation(prepared), renderer, request, TokenChunkWriter)
