"""`POST /v1/chat/completions/render`: a chat as the body of `/inference/v1/generate`."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.conversation.prompt import conversation_prompt
from server.endpoints.chat.schema import ChatRequest
from server.endpoints.chat.spec import chat_conversation, chat_spec
from server.endpoints.plain import PlainRoute
from server.errors import bad_request, json_response
from server.generation.prepare import prepare
from server.http.account import reply_id
from server.schema.generation import LogprobFields, SamplingFields
from server.schema.openapi import describes

router = APIRouter(tags=["generation"], route_class=PlainRoute)

_TAKEN = (
    SamplingFields.model_fields.keys() | LogprobFields.model_fields.keys() | {"structured_outputs"}
) - {"max_tokens"}
_TAKEN_TOP = ("cache_salt", "priority", "stream", "stream_options")


class RenderReply(BaseModel):
    """A body of `/inference/v1/generate`."""

    request_id: str
    model: str
    token_ids: list[int]
    features: None = Field(description="There are no images.")
    sampling_params: dict[str, Any]
    cache_salt: str | None = None
    priority: int | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


@router.post("/v1/chat/completions/render", **describes(ChatRequest, RenderReply))
async def render_chat(request: Request) -> Response:
    """Render a conversation as token ids, and generate nothing."""
    context = context_of(request)
    body = await context.bodies.read(request, ChatRequest)
    prompt = await conversation_prompt(chat_conversation(body, context.info), context)
    grammar = prompt.constraints.grammar
    if body.response_format is not None or (grammar is not None and not body.structured_outputs):
        param = "response_format" if body.response_format is not None else "tool_choice"
        words = f"{param} asks for a grammar, which token ids cannot carry: use structured_outputs"
        raise bad_request(param, words)
    spec = await chat_spec(body, prompt, context, reply_id("", body.request_id, request.scope))
    await prepare(spec, context)
    given = body.model_dump(exclude_none=True)
    params = {name: value for name, value in given.items() if name in _TAKEN}
    if not spec.fits_context:
        params["max_tokens"] = spec.max_tokens
    if body.logprobs:
        params["logprobs"] = body.top_logprobs or 0
    rendered = {
        "request_id": spec.reply_id,
        "model": spec.model,
        "token_ids": prompt.token_ids,
        "features": None,
        "sampling_params": params,
        **{name: given[name] for name in _TAKEN_TOP if name in given},
    }
    return json_response(orjson.dumps(rendered, option=orjson.OPT_SERIALIZE_NUMPY))
