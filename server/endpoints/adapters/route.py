"""Routes that load and unload LoRA adapters of a running server, as vLLM and SGLang have them."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from engine.contracts.adapters import AdapterSource
from engine.contracts.control import AnyCommand, LoadAdapter, UnloadAdapter
from server.context import Context, context_of
from server.endpoints.adapters.reply_schema import AdapterRefusalReply, AdaptersReply, LoadedReply
from server.endpoints.adapters.schema import (
    LoadAdapterRequest,
    LoadFolderBody,
    LoadTensorsBody,
    UnloadAdapterRequest,
    UnloadBody,
)
from server.endpoints.engine_commands import steer
from server.endpoints.plain import PlainRoute
from server.errors import ApiError, bad_request, json_response
from server.schema.adapter_path import path_refusal
from server.schema.model_name import check_model
from server.schema.openapi import as_text, steers

router = APIRouter(tags=["adapters"], route_class=PlainRoute)


@router.post("/v1/load_lora_adapter", **as_text(steers(LoadAdapterRequest, None)))
async def load_adapter(request: Request) -> Response:
    """Load an adapter from a folder or from the body, while requests go on."""
    context = context_of(request)
    body = await context.bodies.read(request, LoadAdapterRequest)
    name = body.lora_name
    _check_name(name, context)
    if body.base_model_name is not None:
        check_model(body.base_model_name, context.config, context.engine.state)
    replaces = bool(body.load_inplace)
    await steer(LoadAdapter(name=name, source=_source(body, context), replaces=replaces), context)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


@router.post("/v1/unload_lora_adapter", **as_text(steers(UnloadAdapterRequest, None)))
async def unload_adapter(request: Request) -> Response:
    """Unload an adapter; replies that it is drawing go on."""
    context = context_of(request)
    body = await context.bodies.read(request, UnloadAdapterRequest)
    await steer(UnloadAdapter(name=body.lora_name), context)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


@router.post(
    "/load_lora_adapter", **steers(LoadFolderBody, AdaptersReply, refusal=AdapterRefusalReply)
)
async def load_from_folder(request: Request) -> Response:
    """Load an adapter from a folder, as SGLang does.

    A name that stands for another folder's gets this one's: prime-rl's trainer loads each version
    so.
    """
    context = context_of(request)
    body = await context.bodies.read(request, LoadFolderBody)
    loaded = {adapter.name: adapter.path for adapter in context.engine.state.adapters}
    replaces = loaded.get(body.lora_name, body.lora_path) != body.lora_path
    return await _outcome(_load_folder(body, context, replaces=replaces), context)


@router.post("/skyrl/v1/load_lora_adapter", **steers(LoadFolderBody, LoadedReply))
async def load_in_place(request: Request) -> Response:
    """Load an adapter from a folder, in place of one that has its name, as SkyRL does."""
    context = context_of(request)
    body = await context.bodies.read(request, LoadFolderBody)
    await steer(_load_folder(body, context, replaces=True), context)
    return json_response({"status": "ok", "lora_name": body.lora_name})


@router.post(
    "/load_lora_adapter_from_tensors",
    **steers(LoadTensorsBody, AdaptersReply, refusal=AdapterRefusalReply),
)
async def load_from_tensors(request: Request) -> Response:
    """Load an adapter from tensors of another process, as SGLang does."""
    context = context_of(request)
    body = await context.bodies.read(request, LoadTensorsBody)
    name = body.lora_name
    _check_name(name, context)
    handles = body.serialized_named_tensors or [body.serialized_tensors or b""]
    if not handles[0] or (body.serialized_named_tensors and body.serialized_tensors):
        raise bad_request(
            "serialized_named_tensors",
            "serialized_named_tensors or serialized_tensors must be given, and not both",
        )
    source = AdapterSource(_given(name), _config(body.config_dict), handles=handles[0])
    return await _outcome(LoadAdapter(name=name, source=source), context)


@router.post(
    "/unload_lora_adapter", **steers(UnloadBody, AdaptersReply, refusal=AdapterRefusalReply)
)
async def unload(request: Request) -> Response:
    """Unload an adapter, as SGLang does."""
    context = context_of(request)
    body = await context.bodies.read(request, UnloadBody)
    return await _outcome(UnloadAdapter(name=body.lora_name), context)


def _load_folder(body: LoadFolderBody, context: Context, *, replaces: bool) -> LoadAdapter:
    _check_name(body.lora_name, context)
    source = _folder(body.lora_path, context)
    return LoadAdapter(name=body.lora_name, source=source, replaces=replaces)


async def _outcome(command: AnyCommand, context: Context) -> Response:
    """The reply of a route that succeeds or fails with a message."""
    words: str | None = None
    try:
        await steer(command, context)
    except ApiError as error:
        if error.status >= 500:
            raise
        words = error.message
    loaded = {adapter.name: adapter.path for adapter in context.engine.state.adapters}
    reply = {"success": words is None, "error_message": words, "loaded_adapters": loaded}
    return json_response(reply, 200 if words is None else 400)


def _check_name(name: str, context: Context) -> None:
    if name in context.config.model_names:
        raise bad_request("lora_name", f"lora_name {name!r} is a name of the model itself")


def _source(body: LoadAdapterRequest, context: Context) -> AdapterSource:
    """Where the adapter of a body is."""
    if body.tensors is None:
        if body.config_dict is not None:
            raise bad_request("tensors", "tensors must be given beside config_dict")
        if body.lora_path is None:
            raise bad_request("lora_path", "lora_path must be given, or tensors beside config_dict")
        return _folder(body.lora_path, context)
    if body.config_dict is None:
        raise bad_request("config_dict", "config_dict must be given beside tensors")
    if not body.tensors:
        raise bad_request("tensors", "tensors must be a file of safetensors, got no bytes")
    given = body.lora_path or _given(body.lora_name)
    return AdapterSource(given, _config(body.config_dict), tensors=body.tensors)


def _folder(path: str, context: Context) -> AdapterSource:
    if (words := path_refusal(path, context.config.lora_root)) is not None:
        raise bad_request("lora_path", f"lora_path {words}")
    return AdapterSource(path)


def _given(name: str) -> str:
    """What an adapter that came without a folder is called."""
    return f"tensors of {name}"


def _config(fields: dict[str, Any]) -> bytes:
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
