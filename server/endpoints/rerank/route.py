"""`POST /v1/rerank`, `/v2/rerank`, `/rerank`: documents in the order of their relevance."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.endpoints.plain import PlainRoute
from server.endpoints.ranking import rank
from server.endpoints.rerank.replies import rerank_reply, sglang_reply, tei_reply
from server.endpoints.rerank.schema import RerankReply, RerankRequest
from server.http.account import reply_id
from server.http.reply import json_reply
from server.schema.model_name import check_model
from server.schema.openapi import describes
from server.scoring.rerankers import Pair

router = APIRouter(tags=["rerank"], route_class=PlainRoute)


@router.post("/v1/rerank", **describes(RerankRequest, RerankReply))
@router.post("/v2/rerank", **describes(RerankRequest, RerankReply))
@router.post("/rerank", **describes(RerankRequest, RerankReply))
async def rerank(request: Request) -> Response:
    """Rank documents by their relevance to a query."""
    context = context_of(request)
    body = await context.bodies.read(request, RerankRequest)
    check_model(body.model, context.config, context.engine.state)
    documents = body.texts if body.documents is None else body.documents
    name = reply_id("rerank-", body.request_id, request.scope)
    raw, usage = await rank(
        [Pair(body.query, document) for document in documents or []],
        body.instruct if body.instruction is None else body.instruction,
        field="texts" if body.is_tei else "documents",
        max_document_tokens=body.max_tokens_per_doc,
        reply_id=name,
        model=body.model,
        request=request,
        context=context,
    )
    if body.is_tei:
        return json_reply(orjson.dumps(tei_reply(body, raw)))
    if body.is_sglang:
        return json_reply(orjson.dumps(sglang_reply(body, raw)))
    model = body.model or context.config.model_names[0]
    return json_reply(orjson.dumps(rerank_reply(body, raw, name, model, usage)))
