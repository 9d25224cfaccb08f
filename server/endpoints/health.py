"""`/health`, `/ping`, `/ready`, `/load`, `/version`, `/metrics`."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.endpoints.plain import PlainRoute
from server.errors import ApiError, json_response, shutting_down
from server.http.admission import check_not_refusing
from server.schema.openapi import replies
from server.version import VERSION

router = APIRouter(tags=["server"], route_class=PlainRoute)


class StatusReply(BaseModel):
    """The server can serve."""

    status: str


class LoadReply(BaseModel):
    """How many choices were admitted and have not ended."""

    server_load: int


class VersionReply(BaseModel):
    """The server's version."""

    version: str


@router.get("/health", responses=replies(StatusReply, 503))
async def health(request: Request) -> Response:
    """Say whether the engine can serve. Open without a key."""
    reason = context_of(request).engine.failure()
    if reason is not None:
        raise ApiError(503, f"the engine cannot serve: {reason}", code="engine_dead")
    return json_response({"status": "ok"})


@router.get("/ready", responses=replies(StatusReply, 503))
async def ready(request: Request) -> Response:
    """Say whether the server can serve and takes new requests. Open without a key."""
    if context_of(request).lifecycle.draining:
        raise shutting_down()
    check_not_refusing(context_of(request).engine.state)
    return await health(request)


@router.post("/ping", include_in_schema=False)
@router.get("/ping", responses=replies(StatusReply, 503))
async def ping(request: Request) -> Response:
    """Tell whether the engine can serve, as SageMaker asks. Open without a key."""
    return await health(request)


@router.get("/health_generate", include_in_schema=False)
@router.get("/liveness", include_in_schema=False)
async def liveness(request: Request) -> Response:
    """Tell whether the engine can serve, by SGLang's name and prime-rl's."""
    return await health(request)


@router.get("/load", responses=replies(LoadReply))
async def load(request: Request) -> Response:
    """Tell how many choices all fronts work at, or let wait."""
    return json_response({"server_load": context_of(request).admission.num_in_flight})


@router.get("/version", responses=replies(VersionReply))
async def version(request: Request) -> Response:
    """Give the server's version."""
    return json_response({"version": VERSION})


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Give the metrics in Prometheus' text format."""
    return Response(context_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
