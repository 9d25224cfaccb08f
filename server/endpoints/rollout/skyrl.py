"""Methods of workers by which SkyRL updates weights."""

from __future__ import annotations

from typing import TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.contracts.control import MEMORY_PARTS, AnyCommand, RunWeights, Sleep, WakeUp
from engine.contracts.weights import BeginUpdate, FinishUpdate, IpcSource, ReceiveTensors
from server.context import context_of
from server.endpoints.engine_commands import steer
from server.endpoints.plain import PlainRoute
from server.endpoints.rollout.reply_schema import RpcReply
from server.endpoints.rollout.trainer_schema import (
    GroupArguments,
    RpcBody,
    SharedArguments,
    SharedBuffer,
    SleepArguments,
    StartArguments,
    WakeArguments,
)
from server.endpoints.rollout.weights import source_of
from server.errors import bad_request, json_response
from server.schema.base import InnerModel, validate
from server.schema.openapi import steers

router = APIRouter(tags=["rollouts"], route_class=PlainRoute)

Arguments = TypeVar("Arguments", bound=InnerModel)
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of a number of the types that SkyRL's trainers have."""


@router.post("/collective_rpc", **steers(RpcBody, RpcReply))
async def collective_rpc(request: Request) -> Response:
    """Follow a method by which SkyRL updates weights, or sleeps while it does."""
    context = context_of(request)
    body = await context.bodies.read(request, RpcBody)
    await steer(_command(body), context)
    return json_response({"results": [None] * context.info.num_ranks})


def _command(body: RpcBody) -> AnyCommand:
    """What a method does; raises `ApiError` for arguments that it has not."""

    def arguments(kind: type[Arguments]) -> Arguments:
        return validate(kind, body.kwargs or {})

    match body.method:
        case "skyrl_start_weight_update":
            arguments(StartArguments)
            return RunWeights(weights=BeginUpdate())
        case "update_weights_nccl":
            source = source_of(arguments(GroupArguments).update_info)
            return RunWeights(weights=ReceiveTensors(source=source))
        case "update_weights_ipc":
            buffer = arguments(SharedArguments).update_info
            return RunWeights(weights=ReceiveTensors(source=_shared(buffer)))
        case "skyrl_finish_weight_update":
            arguments(StartArguments)
            return RunWeights(weights=FinishUpdate())
        case "skyrl_sleep_for_weight_sync":
            arguments(SleepArguments)
            return Sleep(keeps_weights=False)
        case "skyrl_wake_for_weight_sync":
            tags = arguments(WakeArguments).tags
            parts = tuple(part for part in MEMORY_PARTS if part in tags)
            return WakeUp(parts=parts)


def _shared(buffer: SharedBuffer) -> IpcSource:
    """Tensors side by side, whose sizes are numbers of a type."""
    names = [dtype.removeprefix("torch.") for dtype in buffer.dtype_names]
    if unknown := set(names) - ITEM_BYTES.keys():
        known = ", ".join(ITEM_BYTES)
        raise bad_request("dtype_names", f"dtype_names has {min(unknown)!r}; known are {known}")
    sizes = (size * ITEM_BYTES[name] for size, name in zip(buffer.sizes, names, strict=True))
    return IpcSource(
        handles=(buffer.ipc_handles_pickled,),
        names=tuple(buffer.names),
        dtypes=tuple(names),
        shapes=tuple(map(tuple, buffer.shapes)),
        sizes=tuple(sizes),
    )
