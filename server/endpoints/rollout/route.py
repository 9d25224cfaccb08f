"""vLLM's routes that pause and resume, end requests and forget prefixes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.contracts.control import AbortRequests, FlushPrefixes, Pause
from server.context import context_of
from server.endpoints.engine_commands import end_pause, steer
from server.endpoints.plain import PlainRoute
from server.endpoints.rollout.reply_schema import (
    AbortedReply,
    IsPausedReply,
    PausedReply,
    ResumedReply,
    SuccessReply,
    WorldSizeReply,
)
from server.endpoints.rollout.schema import (
    AbortBody,
    PauseQuery,
    ResetBody,
    ResetQuery,
    WorldSizeQuery,
)
from server.errors import ApiError, json_response
from server.schema.openapi import queries, replies, steers
from server.schema.query import read_query

router = APIRouter(tags=["rollouts"], route_class=PlainRoute)


@router.post("/pause", **queries(PauseQuery, PausedReply))
async def pause(request: Request) -> Response:
    """Stop to generate, between two steps, until `/resume`."""
    query = read_query(PauseQuery, request.query_params)
    new_requests = query.new_requests or ("queue" if query.mode == "keep" else "refuse")
    command = Pause(mode=query.mode, forgets=query.clear_cache, refuses=new_requests == "refuse")
    reply = await steer(command, context_of(request))
    return json_response({"status": "paused", "kept": reply.count})


@router.post("/resume", responses=replies(ResumedReply, 409))
async def resume(request: Request) -> Response:
    """Go on after a pause; where the engine sleeps, once it is awake."""
    return json_response({"status": await end_pause(context_of(request))})


@router.get("/is_paused", responses=replies(IsPausedReply))
async def is_paused(request: Request) -> Response:
    """Say whether the engine is paused."""
    return json_response({"is_paused": context_of(request).engine.state.is_paused})


@router.post("/abort_requests", **steers(AbortBody, AbortedReply, may_be_empty=True))
async def abort_requests(request: Request) -> Response:
    """End requests with what they have: their `finish_reason` is `abort`."""
    context = context_of(request)
    body = await context.bodies.read_optional(request, AbortBody)
    names = tuple(body.request_ids) if body.request_ids else None
    reply = await steer(AbortRequests(names=names), context)
    return json_response({"status": "aborted", "aborted": reply.count})


@router.post("/reset_prefix_cache", **queries(ResetQuery, SuccessReply))
async def reset_prefix_cache(request: Request) -> Response:
    """Forget all prefixes, so that no later request finds one; SkyRL's client sends a body."""
    query, context = read_query(ResetQuery, request.query_params), context_of(request)
    body = await context.bodies.read_optional(request, ResetBody)
    restarts = query.reset_running_requests or body.reset_running_requests
    try:
        await steer(FlushPrefixes(restarts=restarts), context)
    except ApiError as error:
        if error.code != "busy":
            raise
        return json_response({"success": False})
    return json_response({"success": True})


@router.get("/get_world_size", **queries(WorldSizeQuery, WorldSizeReply))
async def get_world_size(request: Request) -> Response:
    """Count the processes that hold a part of the model each: the ranks of a transfer."""
    read_query(WorldSizeQuery, request.query_params)
    return json_response({"world_size": context_of(request).info.num_ranks})
