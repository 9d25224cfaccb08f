"""`/v1/models`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import Context, context_of
from server.endpoints.models.reply_schema import ModelCard, ModelList
from server.endpoints.plain import PlainRoute
from server.errors import json_response
from server.schema.checks import check_model
from server.schema.openapi import path_parameter, replies

router = APIRouter(tags=["models"], route_class=PlainRoute)


@router.get("/v1/models", responses=replies(ModelList))
async def list_models(request: Request) -> Response:
    """List the names that this server answers to."""
    context = context_of(request)
    cards = [_card(name, context) for name in context.config.model_names]
    return json_response({"object": "list", "data": cards})


@router.get(
    "/v1/models/{model:path}",
    responses=replies(ModelCard, 404),
    openapi_extra={"parameters": [path_parameter("model", "One of the names.")]},
)
async def retrieve_model(request: Request) -> Response:
    """Describe one of the names."""
    context = context_of(request)
    model: str = request.path_params["model"]
    check_model(model, context.config)
    return json_response(_card(model, context))


def _card(name: str, context: Context) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.config.created,
        "owned_by": "tailrace",
        "root": context.config.model_root or name,
        "parent": None,
        "max_model_len": context.info.max_model_len,
        "quantization": context.quantization,
        "system_fingerprint": context.fingerprint,
    }
