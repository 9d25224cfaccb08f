"""`/v1/models`, in OpenAI's shape, and for its own client in Anthropic's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import Context, context_of
from server.endpoints.models.reply_schema import ModelCard, ModelList
from server.endpoints.plain import PlainRoute
from server.errors import json_response
from server.schema.model_name import check_model
from server.schema.openapi import path_parameter, replies

router = APIRouter(tags=["models"], route_class=PlainRoute)


@router.get("/v1/models", responses=replies(ModelList))
async def list_models(request: Request) -> Response:
    """List the names that this server answers to."""
    context = context_of(request)
    names = [*context.config.model_names, *(each.name for each in context.engine.state.adapters)]
    if _is_anthropic(request):
        cards = [_anthropic_card(name, context) for name in names]
        ends = {"first_id": names[0], "last_id": names[-1], "has_more": False}
        return json_response({"data": cards, **ends})
    return json_response({"object": "list", "data": [_card(name, context) for name in names]})


@router.get(
    "/v1/models/{model:path}",
    responses=replies(ModelCard, 404),
    openapi_extra={"parameters": [path_parameter("model", "One of the names.")]},
)
async def retrieve_model(request: Request) -> Response:
    """Describe one of the names."""
    context = context_of(request)
    model: str = request.path_params["model"]
    check_model(model, context.config, context.engine.state)
    card = _anthropic_card if _is_anthropic(request) else _card
    return json_response(card(model, context))


def _is_anthropic(request: Request) -> bool:
    """Whether Anthropic's client asks, which reads another shape."""
    return "anthropic-version" in request.headers


def _anthropic_card(name: str, context: Context) -> dict[str, Any]:
    """A model as Anthropic's client reads it; its documented nulls are sent."""
    created = datetime.fromtimestamp(context.config.created, UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": context.info.max_model_len,
        "max_tokens": context.info.max_model_len,
        "lifecycle": "active",
        **dict.fromkeys(("capabilities", "line", "deprecated_at", "retires_at")),
    }


def _card(name: str, context: Context) -> dict[str, Any]:
    config = context.config
    folders = {each.name: each.path for each in context.engine.state.adapters}
    return {
        "id": name,
        "object": "model",
        "created": config.created,
        "owned_by": "tailrace",
        "root": folders.get(name) or config.model_root or name,
        "parent": config.model_names[0] if name in folders else None,
        "max_model_len": context.info.max_model_len,
        "quantization": context.quantization,
        "system_fingerprint": str(context.fingerprint_of(name)),
    }
