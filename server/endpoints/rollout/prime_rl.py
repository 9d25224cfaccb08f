"""prime-rl's route that forms the group over which its trainer broadcasts.

Once there is one, `/update_weights` with a `weight_dir` that has no weights receives them over it.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.contracts.weights import InitGroup
from server.context import context_of
from server.endpoints.engine_commands import run_weights
from server.endpoints.plain import PlainRoute
from server.endpoints.rollout.reply_schema import OkReply
from server.endpoints.rollout.trainer_schema import MAX_FORMING_S, BroadcasterBody
from server.endpoints.rollout.weights import DESCRIBED_GROUP
from server.errors import json_response
from server.schema.openapi import steers

router = APIRouter(tags=["rollouts"], route_class=PlainRoute)


@router.post("/init_broadcaster", **steers(BroadcasterBody, OkReply))
async def init_broadcaster(request: Request) -> Response:
    """Form the group in which prime-rl's trainer is rank 0."""
    context = context_of(request)
    body = await context.bodies.read(request, BroadcasterBody)
    command = InitGroup(
        name=DESCRIBED_GROUP,
        world_size=body.inference_world_size + 1,
        rank_offset=body.rank_offset + 1,
        master_address=body.host,
        master_port=body.port,
        timeout_s=min(body.timeout, MAX_FORMING_S),
        forms_as="vllm",
    )
    await run_weights(command, context)
    return json_response({"status": "ok"})
