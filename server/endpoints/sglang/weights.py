"""SGLang's routes that change and read weights, and give memory back."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.contracts.control import MEMORY_PARTS, AbortRequests, MemoryPart, Sleep, WakeUp
from engine.contracts.weights import (
    AnySource,
    BeginUpdate,
    BucketSource,
    EndGroup,
    FinishUpdate,
    FolderSource,
    GroupSource,
    InitGroup,
    IpcSource,
    ReadWeight,
    WeightTarget,
    WeightValues,
)
from server.context import Context, context_of
from server.endpoints.engine_commands import checksums, run_weights, steer, update_weights
from server.endpoints.plain import PlainRoute
from server.endpoints.sglang.reply_schema import (
    ModelInfoReply,
    OutcomeRefusalReply,
    OutcomeReply,
    WeightsCheckerReply,
    WeightVersionReply,
)
from server.endpoints.sglang.weight_schema import (
    BeginBody,
    DestroyGroupBody,
    EndBody,
    FromDiskBody,
    FromDistributedBody,
    FromTensorBody,
    GetWeightBody,
    InitGroupBody,
    MemoryBody,
    Selector,
    WeightsCheckerBody,
)
from server.errors import ApiError, bad_request, json_response
from server.http.account import account_of
from server.schema.base import BodyModel
from server.schema.openapi import replies, steers

router = APIRouter(tags=["rollouts, as SGLang has them"], route_class=PlainRoute)

DONE = "Success."


def _steers(kind: type[BodyModel], *, may_be_empty: bool = False) -> dict[str, Any]:
    """Describe a route whose outcome is a reply, `_outcome`."""
    return steers(kind, OutcomeReply, may_be_empty=may_be_empty, refusal=OutcomeRefusalReply)


async def _outcome(work: Awaitable[object]) -> Response:
    """The reply of a route that succeeds or fails with a message."""
    try:
        await work
    except ApiError as error:
        if error.status >= 500:
            raise
        return json_response({"success": False, "message": error.message}, 400)
    return json_response({"success": True, "message": DONE})


@router.post("/init_weights_update_group", **_steers(InitGroupBody))
async def init_weights_update_group(request: Request) -> Response:
    """Form the group over which tensors will come."""
    context = context_of(request)
    body = await context.bodies.read(request, InitGroupBody)
    command = InitGroup(
        name=body.group_name,
        world_size=body.world_size,
        rank_offset=body.rank_offset,
        master_address=body.master_address,
        master_port=body.master_port,
        backend=body.backend,
    )
    return await _outcome(run_weights(command, context))


@router.post("/destroy_weights_update_group", **_steers(DestroyGroupBody, may_be_empty=True))
async def destroy_weights_update_group(request: Request) -> Response:
    """Leave a group."""
    context = context_of(request)
    body = await context.bodies.read_optional(request, DestroyGroupBody)
    return await _outcome(run_weights(EndGroup(name=body.group_name), context))


@router.post("/update_weights_from_disk", **_steers(FromDiskBody))
async def update_weights_from_disk(request: Request) -> Response:
    """Update weights from a folder of safetensors."""
    context = context_of(request)
    body = await context.bodies.read(request, FromDiskBody)
    return await _outcome(_update(FolderSource(path=body.model_path), body, context))


@router.post("/update_weights_from_distributed", **_steers(FromDistributedBody))
async def update_weights_from_distributed(request: Request) -> Response:
    """Update weights by tensors that are broadcast: an update of its own, or a part of one."""
    context = context_of(request)
    body = await context.bodies.read(request, FromDistributedBody)
    for name in ("dtypes", "shapes"):
        if (count := len(getattr(body, name))) != len(body.names):
            words = f"{name} must be as many as names ({len(body.names)}), got {count}"
            raise bad_request(name, words)
    kind = GroupSource if body.load_format is None else BucketSource
    source = kind(
        group=body.group_name,
        names=tuple(body.names),
        dtypes=tuple(dtype.removeprefix("torch.") for dtype in body.dtypes),
        shapes=tuple(map(tuple, body.shapes)),
    )
    return await _outcome(_update(source, body, context, _target(body.selector)))


@router.post("/update_weights_from_tensor", **_steers(FromTensorBody))
async def update_weights_from_tensor(request: Request) -> Response:
    """Update weights by pickled handles: an update of its own, or a part of one."""
    context = context_of(request)
    body = await context.bodies.read(request, FromTensorBody)
    source = IpcSource(
        handles=tuple(body.serialized_named_tensors),
        layout="flattened_bucket" if body.load_format == "flattened_bucket" else "tensors",
    )
    return await _outcome(_update(source, body, context, _target(body.selector)))


@router.post("/begin_weight_update", **_steers(BeginBody, may_be_empty=True))
async def begin_weight_update(request: Request) -> Response:
    """Let the next updates be parts of one, which `/end_weight_update` writes."""
    context = context_of(request)
    body = await context.bodies.read_optional(request, BeginBody)
    begin = BeginUpdate(target=_target(body.selector), takes_parts=True)
    return await _outcome(run_weights(begin, context))


@router.post("/end_weight_update", **_steers(EndBody, may_be_empty=True))
async def end_weight_update(request: Request) -> Response:
    """Write what came since `/begin_weight_update`."""
    context = context_of(request)
    body = await context.bodies.read_optional(request, EndBody)
    finish = FinishUpdate(version=body.weight_version, of_parts=True)
    return await _outcome(run_weights(finish, context))


def _target(selector: Selector | None) -> WeightTarget:
    return "draft" if selector == "draft" else "model"


async def _update(
    source: AnySource,
    body: FromDiskBody | FromDistributedBody | FromTensorBody,
    context: Context,
    target: WeightTarget = "model",
) -> None:
    """Do all of an update, or a part of the one that was begun."""
    if body.abort_all_requests:
        await steer(AbortRequests(), context)
    finish = FinishUpdate(version=body.weight_version)
    await update_weights(source, context, finish, target=target, joins=True)


@router.get("/get_weights_by_name", include_in_schema=False)
@router.post("/get_weights_by_name", **steers(GetWeightBody, None))
async def get_weights_by_name(request: Request) -> Response:
    """Read the first rows of a weight, as lists."""
    context = context_of(request)
    body = await context.bodies.read(request, GetWeightBody)
    found = await run_weights(ReadWeight(name=body.name, truncate=body.truncate_size), context)
    assert isinstance(found, WeightValues)
    width = max(math.prod(found.shape[1:]), 1)
    if len(found.shape) < 2:
        return json_response(list(found.values))
    starts = range(0, len(found.values), width)
    return json_response([list(found.values[start : start + width]) for start in starts])


@router.get("/release_memory_occupation", include_in_schema=False)
@router.post("/release_memory_occupation", **steers(MemoryBody, None, may_be_empty=True))
async def release_memory_occupation(request: Request) -> Response:
    """Give memory back; refused while requests have not ended."""
    parts = await _parts(request)
    if parts:
        await steer(Sleep(parts=parts), context_of(request))
    return json_response(None)


@router.get("/resume_memory_occupation", include_in_schema=False)
@router.post("/resume_memory_occupation", **steers(MemoryBody, None, may_be_empty=True))
async def resume_memory_occupation(request: Request) -> Response:
    """Take memory again."""
    parts = await _parts(request)
    if parts:
        await steer(WakeUp(parts=parts), context_of(request))
    return json_response(None)


async def _parts(request: Request) -> tuple[MemoryPart, ...]:
    body = await context_of(request).bodies.read_optional(request, MemoryBody)
    if body.tags is None:
        return MEMORY_PARTS
    if "cuda_graph" in body.tags:
        account_of(request.scope).without_effect = ["tags.cuda_graph"]
    return tuple(part for part in MEMORY_PARTS if part in body.tags)


@router.get("/weights_checker", include_in_schema=False)
@router.post(
    "/weights_checker", **steers(WeightsCheckerBody, WeightsCheckerReply, may_be_empty=True)
)
async def weights_checker(request: Request) -> Response:
    """Give checksums of the weights."""
    context = context_of(request)
    body = await context.bodies.read_optional(request, WeightsCheckerBody)
    skipped = body.skip_tensor_list or ()
    sums = {
        name: checksum
        for name, checksum in (await checksums(context)).items()
        if not any(part in name for part in skipped)
    }
    ranks = [{"checksums": sums}]
    return json_response({"success": True, "message": DONE, "ranks": ranks})


@router.get("/get_weight_version", responses=replies(WeightVersionReply))
async def get_weight_version(request: Request) -> Response:
    """Say which version the weights have."""
    version = context_of(request).engine.state.weight_version
    return json_response({"weight_version": version})


@router.get("/get_model_info", include_in_schema=False)
@router.get("/model_info", responses=replies(ModelInfoReply))
async def model_info(request: Request) -> Response:
    """Say what is served, and which version the weights have."""
    context = context_of(request)
    config = context.config
    return json_response(
        {
            "model_path": config.model_root or config.model_names[0],
            "served_model_name": config.model_names[0],
            "tokenizer_path": config.model_root or config.model_names[0],
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": context.engine.state.weight_version,
            "has_image_understanding": False,
            "has_audio_understanding": False,
        }
    )
