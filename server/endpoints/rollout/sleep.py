"""vLLM's routes that give the engine's memory back and take it again."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.contracts.control import MEMORY_PARTS, NO_SLEEP, MemoryPart, Pause, Sleep, WakeUp
from server.context import context_of
from server.endpoints.engine_commands import steer
from server.endpoints.plain import PlainRoute
from server.endpoints.rollout.reply_schema import AwakeReply, IsSleepingReply, SleepingReply
from server.endpoints.rollout.schema import SleepQuery, WakeQuery
from server.errors import ApiError, json_response
from server.schema.openapi import queries, replies
from server.schema.query import read_query

router = APIRouter(tags=["rollouts"], route_class=PlainRoute)

KEPT, LET_GO = 1, 2
"""Levels of sleep: weights are kept on the host, or not."""


@router.post("/sleep", **queries(SleepQuery, SleepingReply))
async def sleep(request: Request) -> Response:
    """Pause, and give back the memory of weights and cache until `/wake_up`."""
    query, context = read_query(SleepQuery, request.query_params), context_of(request)
    if query.level and not context.config.sleep_mode:  # before its pause ends requests
        raise ApiError(400, NO_SLEEP, code="no_sleep")
    refuses = query.new_requests != "queue"
    pause = Pause(mode=query.mode, refuses=refuses, for_sleep=True)
    state = (await steer(pause, context)).state
    if query.level:
        parts: tuple[MemoryPart, ...] = tuple(query.tags) or MEMORY_PARTS
        command = Sleep(parts=parts, keeps_weights=query.level < LET_GO)
        try:
            state = (await steer(command, context)).state
        except ApiError:
            await steer(WakeUp(parts=()), context)  # ends the pause
            raise
    level = (LET_GO if state.lacks_weights else KEPT) if state.asleep else 0
    return json_response({"status": "sleeping", "level": level})


@router.post("/wake_up", **queries(WakeQuery, AwakeReply))
async def wake_up(request: Request) -> Response:
    """Take memory again, all or by parts; with the last the engine goes on, unless it is paused."""
    query, context = read_query(WakeQuery, request.query_params), context_of(request)
    parts: tuple[MemoryPart, ...] = tuple(query.tags) or MEMORY_PARTS
    reply = await steer(WakeUp(parts=parts), context)
    status = "sleeping" if reply.state.asleep else "awake"
    return json_response({"status": status, "tags": query.tags or None})


@router.get("/is_sleeping", responses=replies(IsSleepingReply))
async def is_sleeping(request: Request) -> Response:
    """Say whether memory is given back, and which."""
    asleep = context_of(request).engine.state.asleep
    return json_response({"is_sleeping": bool(asleep), "asleep": asleep})
