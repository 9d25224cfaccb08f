"""`/tokenize`, `/detokenize`, `/tokenizer_info`."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.completions.prepare import check_model
from server.completions.prompts import INLINE_CHARS
from server.context import context_of
from server.errors import json_response
from server.routes.plain import PlainRoute
from server.schema.ids import check_vocab
from server.schema.openapi import describes, replies
from server.schema.replies import DetokenizeReply, TokenizeReply
from server.schema.tokens import DetokenizeRequest, TokenizeRequest

router = APIRouter(tags=["tokens"], route_class=PlainRoute)


@router.post("/tokenize", **describes(TokenizeRequest, TokenizeReply))
async def tokenize(request: Request) -> Response:
    """Ids of a text."""
    context = context_of(request)
    wire = await context.bodies.read(request, TokenizeRequest)
    check_model(wire.model, context.config)

    def reply() -> Response:
        add = wire.add_special_tokens is not False
        tokens = context.tokenizer.encode(wire.prompt, add_special_tokens=add)
        texts = context.tokenizer.texts
        body: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": context.engine.info.max_model_len,
            "tokens": tokens,
            "token_strs": [texts[i] for i in tokens] if wire.return_token_strs else None,
        }
        return json_response(body)

    return reply() if len(wire.prompt) <= INLINE_CHARS else await asyncio.to_thread(reply)


@router.post("/detokenize", **describes(DetokenizeRequest, DetokenizeReply))
async def detokenize(request: Request) -> Response:
    """Text of ids."""
    context = context_of(request)
    wire = await context.bodies.read(request, DetokenizeRequest)
    check_model(wire.model, context.config)
    check_vocab("tokens", wire.tokens, context.engine.info.vocab_size)

    def reply() -> Response:
        return json_response({"prompt": context.tokenizer.decode(wire.tokens.tolist())})

    return reply() if len(wire.tokens) <= INLINE_CHARS else await asyncio.to_thread(reply)


@router.get("/tokenizer_info", responses=replies(None))
async def tokenizer_info(request: Request) -> Response:
    """Special tokens and chat template, for harnesses that tokenise on their side."""
    return json_response(context_of(request).tokenizer.description)
