"""vLLM's routes that change weights, and `/weights`, which lists them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.contracts.weights import (
    AnySource,
    BeginUpdate,
    DescribedSource,
    EndGroup,
    FinishUpdate,
    FolderSource,
    GivenSource,
    GroupSource,
    InitGroup,
    IpcSource,
    ListWeights,
    ReceiveTensors,
    SetVersion,
    TensorBytes,
    WeightTarget,
)
from server.context import context_of
from server.endpoints.engine_commands import checksums, list_weights, run_weights, update_weights
from server.endpoints.plain import PlainRoute
from server.endpoints.rollout.reply_schema import (
    ChecksumsReply,
    DoneReply,
    VersionSetReply,
    WeightInfoReply,
    WeightListReply,
)
from server.endpoints.rollout.weight_schema import (
    CheckerBody,
    FinishBody,
    InitBody,
    InitInfo,
    StartBody,
    UpdateBody,
    UpdateInfo,
    VersionBody,
    WeightsQuery,
)
from server.errors import bad_request, json_response
from server.schema.base import validate
from server.schema.openapi import queries, replies, steers
from server.schema.query import read_query

router = APIRouter(tags=["rollouts"], route_class=PlainRoute)

GROUP = "vllm"
"""The name of the one group that vLLM's routes know."""
DESCRIBED_GROUP = "prime-rl"
"""The group of a trainer that describes its tensors, which it has on no disk."""


@router.post("/init_weight_transfer_engine", **steers(InitBody, DoneReply))
async def init_weight_transfer_engine(request: Request) -> Response:
    """Form the group over which tensors will come; nothing where they come otherwise."""
    context = context_of(request)
    body = await context.bodies.read(request, InitBody)
    info = body.init_info
    if isinstance(info, InitInfo) or info:
        await run_weights(_group(info), context)
    return json_response({"message": "Weight transfer initialized"})


def _group(info: InitInfo | dict[str, Any]) -> InitGroup:
    checked = info if isinstance(info, InitInfo) else validate(InitInfo, info)
    if checked.nccl_unique_id_b64 is None and None in (checked.master_address, checked.master_port):
        raise bad_request(
            "init_info", "init_info needs master_address and master_port, or nccl_unique_id_b64"
        )
    return InitGroup(
        name=GROUP,
        world_size=checked.world_size,
        rank_offset=checked.rank_offset,
        master_address=checked.master_address or "",
        master_port=checked.master_port or 0,
        backend=checked.backend,
        unique_id=checked.nccl_unique_id_b64,
        packed=checked.packed,
        buffer_bytes=checked.packed_buffer_size_bytes,
        num_buffers=checked.packed_num_buffers,
        timeout_s=checked.timeout_s,
        forms_as="vllm",
    )


@router.post("/shutdown_weight_transfer_engine", responses=replies(DoneReply, 400, 409))
async def shutdown_weight_transfer_engine(request: Request) -> Response:
    """Leave the group."""
    await run_weights(EndGroup(name=GROUP), context_of(request))
    return json_response({"message": "Weight transfer shut down"})


@router.post("/start_weight_update", **steers(StartBody, DoneReply, may_be_empty=True))
async def start_weight_update(request: Request) -> Response:
    """Begin an update of the model's weights."""
    return await _start(request, "model", "Weight update started")


@router.post("/start_draft_weight_update", **steers(StartBody, DoneReply, may_be_empty=True))
async def start_draft_weight_update(request: Request) -> Response:
    """Begin an update of the drafter's weights."""
    return await _start(request, "draft", "Draft weight update started")


async def _start(request: Request, target: WeightTarget, message: str) -> Response:
    context = context_of(request)
    body = await context.bodies.read_optional(request, StartBody)
    await run_weights(BeginUpdate(target=target, check=bool(body.check)), context)
    return json_response({"message": message})


@router.post("/update_weights", **steers(UpdateBody, DoneReply))
async def update(request: Request) -> Response:
    """Receive tensors of the update that was begun; or do all of one from a folder."""
    context = context_of(request)
    body = await context.bodies.read(request, UpdateBody)
    if (body.weight_dir is None) == (body.update_info is None):
        raise bad_request("update_info", "one of update_info and weight_dir must be given")
    if body.weight_dir is not None:
        source = DescribedSource(group=DESCRIBED_GROUP, path=body.weight_dir)
        finish = FinishUpdate(version=body.weight_version, drafter=body.drafter or "keep")
        await update_weights(source, context, finish)
    elif body.update_info is not None:
        tensors = source_of(body.update_info)
        await run_weights(ReceiveTensors(source=tensors, version=body.weight_version), context)
    return json_response({"message": "Weights updated"})


def source_of(info: UpdateInfo) -> AnySource:
    """Where the tensors of an update come from; raises `ApiError` where nothing says it."""
    if info.path is not None:
        return FolderSource(path=info.path)
    if info.tensors is not None:
        given = (
            TensorBytes(tensor.name, tensor.dtype, tuple(tensor.shape), tensor.data)
            for tensor in info.tensors
        )
        return GivenSource(tensors=tuple(given))
    names, dtypes = tuple(info.names or ()), tuple(info.dtype_names or ())
    shapes = tuple(tuple(shape) for shape in info.shapes or ())
    if info.ipc_handles_pickled is not None:
        return IpcSource(
            handles=(info.ipc_handles_pickled,),
            names=names,
            dtypes=dtypes,
            shapes=shapes,
            sizes=None if info.tensor_sizes is None else tuple(info.tensor_sizes),
        )
    if info.names is None:
        raise bad_request("update_info", "update_info names no tensors")
    return GroupSource(group=GROUP, names=names, dtypes=dtypes, shapes=shapes, packed=info.packed)


@router.post("/finish_weight_update", **steers(FinishBody, DoneReply, may_be_empty=True))
async def finish_weight_update(request: Request) -> Response:
    """Write all tensors of the update at once, in place."""
    context = context_of(request)
    body = await context.bodies.read_optional(request, FinishBody)
    finish = FinishUpdate(version=body.weight_version, drafter=body.drafter or "keep")
    await run_weights(finish, context)
    return json_response({"message": "Weight update finished"})


@router.post("/update_weight_version", **steers(VersionBody, VersionSetReply))
async def update_weight_version(request: Request) -> Response:
    """Call the weights by another version."""
    context = context_of(request)
    body = await context.bodies.read(request, VersionBody)
    await run_weights(SetVersion(version=body.new_version), context)
    return json_response(
        {
            "success": True,
            "message": f"Weight version updated to {body.new_version}",
            "new_version": body.new_version,
        }
    )


@router.get("/weight_info", responses=replies(WeightInfoReply))
async def weight_info(request: Request) -> Response:
    """Say which version the weights have."""
    state = context_of(request).engine.state
    last = state.last_update
    return json_response(
        {
            "weight_version": state.weight_version,
            "num_updates": state.num_updates,
            "last_update": None
            if last is None
            else {
                "num_tensors": last.num_tensors,
                "num_bytes": last.num_bytes,
                "seconds": last.seconds,
            },
            "drafter": state.drafter,
        }
    )


@router.post("/weight_checker", **steers(CheckerBody, ChecksumsReply))
async def weight_checker(request: Request) -> Response:
    """Give checksums of the weights, or compare them."""
    context = context_of(request)
    body = await context.bodies.read(request, CheckerBody)
    if body.action == "compare" and body.baseline is None:
        raise bad_request("baseline", 'baseline must be given with the action "compare"')
    sums = await checksums(context)
    if body.baseline is None:
        return json_response({"checksums": sums})
    names = sums.keys() | body.baseline.keys()
    differ = sorted(name for name in names if sums.get(name) != body.baseline.get(name))
    return json_response({"match": not differ, "mismatches": differ})


@router.get("/weights", **queries(WeightsQuery, WeightListReply))
async def weights(request: Request) -> Response:
    """List the weights by their names in the checkpoint."""
    query, context = read_query(WeightsQuery, request.query_params), context_of(request)
    command = ListWeights(checksums=query.checksums, target=query.target)
    found = await list_weights(command, context)
    state = context.engine.state
    return json_response(
        {
            "weight_version": state.weight_version,
            "weights": [
                {
                    "name": each.name,
                    "shape": each.shape,
                    "dtype": each.dtype,
                    **({} if each.checksum is None else {"checksum": each.checksum}),
                }
                for each in found.weights
            ],
        }
    )
