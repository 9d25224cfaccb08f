"""SGLang's routes that pause and continue, end requests and flush the cache."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from engine.contracts.control import AbortRequests, FlushPrefixes, Pause
from server.context import context_of
from server.endpoints.engine_commands import end_pause, steer
from server.endpoints.plain import PlainRoute
from server.endpoints.sglang.reply_schema import StatusMessageReply
from server.endpoints.sglang.schema import (
    AbortRequestBody,
    ContinueGenerationBody,
    FlushQuery,
    PauseGenerationBody,
)
from server.errors import ApiError, bad_request, json_response
from server.schema.openapi import as_text, queries, steers, without_content
from server.schema.query import read_query

router = APIRouter(tags=["rollouts, as SGLang has them"], route_class=PlainRoute)

LOOK_S = 0.05
"""Seconds between two tries to flush a cache that requests hold."""


@router.post(
    "/pause_generation", **steers(PauseGenerationBody, StatusMessageReply, may_be_empty=True)
)
async def pause_generation(request: Request) -> Response:
    """Stop to generate; requests that come meanwhile wait."""
    context = context_of(request)
    body = await context.bodies.read_optional(request, PauseGenerationBody)
    command = Pause(
        mode="abort" if body.mode == "abort" else "keep",
        forgets=body.mode != "in_place",
        refuses=False,
    )
    await steer(command, context)
    return json_response({"message": "Generation paused successfully.", "status": "ok"})


@router.post(
    "/continue_generation", **steers(ContinueGenerationBody, StatusMessageReply, may_be_empty=True)
)
async def continue_generation(request: Request) -> Response:
    """Go on after a pause; where the engine sleeps, once it is awake."""
    context = context_of(request)
    await context.bodies.read_optional(request, ContinueGenerationBody)
    status = await end_pause(context)
    message = "Generation continued successfully."
    if status != "resumed":
        message = f"Generation continues later: the engine is held ({status})."
    return json_response({"message": message, "status": "ok"})


@router.post("/abort_request", **without_content(steers(AbortRequestBody, None)))
async def abort_request(request: Request) -> Response:
    """End one request, or all, with what they have."""
    context = context_of(request)
    body = await context.bodies.read_optional(request, AbortRequestBody)
    if not body.abort_all and not body.rid:
        raise bad_request("rid", "rid must be given, or abort_all be true")
    await steer(AbortRequests(names=None if body.abort_all else (body.rid or "",)), context)
    return Response(status_code=200)


@router.get("/flush_cache", include_in_schema=False)
@router.post("/flush_cache", **as_text(queries(FlushQuery, None), 400))
async def flush_cache(request: Request) -> Response:
    """Forget all prefixes; a 400 while requests hold computed blocks."""
    query = read_query(FlushQuery, request.query_params)
    deadline = time.monotonic() + query.timeout
    while True:
        try:
            await steer(FlushPrefixes(), context_of(request))
        except ApiError as error:
            if error.code != "busy":
                raise
            if time.monotonic() >= deadline:
                return PlainTextResponse(f"Flush cache failed: {error.message}.\n", 400)
            await asyncio.sleep(LOOK_S)
        else:
            return PlainTextResponse("Cache flushed.\n")
