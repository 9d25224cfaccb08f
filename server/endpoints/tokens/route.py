"""`/tokenize`, `/detokenize`, `/tokenizer_info`."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.conversation.messages import template_messages
from server.conversation.prompt import render_tokens
from server.conversation.spec import ConversationSpec, function_tool, template_options
from server.endpoints.plain import PlainRoute
from server.endpoints.tokens.reply_schema import DetokenizeReply, TokenizeReply
from server.endpoints.tokens.schema import DetokenizeRequest, TokenizeRequest
from server.errors import ClientNames, bad_request, json_response
from server.http.reply import json_reply
from server.schema.ids import check_vocab
from server.schema.model_name import check_model
from server.schema.openapi import describes, replies
from server.text.tokenizer import INLINE_CHARS

router = APIRouter(tags=["tokens"], route_class=PlainRoute)


@router.post("/tokenize", **describes(TokenizeRequest, TokenizeReply))
async def tokenize(request: Request) -> Response:
    """Turn a text or a conversation into ids."""
    context = context_of(request)
    body = await context.bodies.read(request, TokenizeRequest)
    check_model(body.model, context.config, context.engine.state)
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("prompt", "one of prompt and messages is required, and not both")
    if body.tools and body.messages is None:
        raise bad_request("tools", "tools need messages, which a template shows them with")
    rendered = None
    if body.messages is not None:
        tools = [
            function_tool(tool.function, f"tools[{i}].function")
            for i, tool in enumerate(body.tools or ())
        ]
        conversation = ConversationSpec(
            names=ClientNames(),
            model=body.model,
            messages=template_messages(body.messages),
            template=template_options(body),
            tools=tools,
        )
        rendered = await render_tokens(conversation, context)
    text = body.prompt or ""

    def reply() -> Response:
        add = body.add_special_tokens is not False
        if rendered is None:
            tokens = context.tokenizer.encode(text, add_special_tokens=add)
        else:
            tokens = rendered.tolist()
        content: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": context.info.max_model_len,
            "tokens": tokens,
            "token_strs": context.tokenizer.spellings(tokens) if body.return_token_strs else None,
        }
        return json_reply(orjson.dumps(content))

    return reply() if len(text) <= INLINE_CHARS else await asyncio.to_thread(reply)


@router.post("/detokenize", **describes(DetokenizeRequest, DetokenizeReply))
async def detokenize(request: Request) -> Response:
    """Turn ids into a text."""
    context = context_of(request)
    body = await context.bodies.read(request, DetokenizeRequest)
    check_model(body.model, context.config, context.engine.state)
    check_vocab("tokens", body.tokens, context.info.vocab_size)

    def reply() -> Response:
        text = context.tokenizer.decode(body.tokens.tolist())
        return json_reply(orjson.dumps({"prompt": text}))

    return reply() if len(body.tokens) <= INLINE_CHARS else await asyncio.to_thread(reply)


@router.get("/tokenizer_info", responses=replies(None))
async def tokenizer_info(request: Request) -> Response:
    """Describe the tokenizer: special tokens and chat template, for clients that tokenise."""
    return json_response(context_of(request).tokenizer.description)
