"""`POST /verify`: the self-test of the sampler, for the page, where `--page-verify` allows it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from server.context import context_of
from server.endpoints.plain import PlainRoute

router = APIRouter(route_class=PlainRoute, include_in_schema=False)


@router.post("/verify")
async def verify(request: Request) -> Response:
    """Run the self-test in a process of its own; each check is a line of JSON as it ends."""
    lines = context_of(request).self_test.begin()
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(lines, headers=headers, media_type="application/x-ndjson")
