"""vLLM's routes that load and unload LoRA adapters of a running server."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from engine.contracts.control import LoadAdapter, UnloadAdapter
from server.context import Context, context_of
from server.endpoints.adapters.schema import LoadAdapterRequest, UnloadAdapterRequest
from server.endpoints.plain import PlainRoute
from server.endpoints.steer import steer
from server.errors import bad_request
from server.schema.adapters import path_refusal
from server.schema.checks import check_model
from server.schema.openapi import describes

router = APIRouter(tags=["adapters"], route_class=PlainRoute)


@router.post("/v1/load_lora_adapter", **describes(LoadAdapterRequest, None))
async def load_adapter(request: Request) -> Response:
    """Load an adapter from a folder, while requests go on."""
    context = context_of(request)
    body = await context.bodies.read(request, LoadAdapterRequest)
    name = body.lora_name
    _check_name(name, context)
    if body.base_model_name is not None:
        check_model(body.base_model_name, context.config, context.engine.state)
    if (words := path_refusal(body.lora_path, context.config.lora_root)) is not None:
        raise bad_request("lora_path", f"lora_path {words}")
    replaces = bool(body.load_inplace)
    await steer(LoadAdapter(name=name, path=body.lora_path, replaces=replaces), context)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


@router.post("/v1/unload_lora_adapter", **describes(UnloadAdapterRequest, None))
async def unload_adapter(request: Request) -> Response:
    """Unload an adapter; replies that it is drawing go on."""
    context = context_of(request)
    body = await context.bodies.read(request, UnloadAdapterRequest)
    await steer(UnloadAdapter(name=body.lora_name), context)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _check_name(name: str, context: Context) -> None:
    if name in context.config.model_names:
        raise bad_request("lora_name", f"lora_name {name!r} is a name of the model itself")
