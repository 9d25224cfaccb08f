"""`/docs`: the API's description as a page, of which nothing comes from elsewhere.

The page and the document it shows are open to all: they reveal no more than the program's source.
The calls made from the page need the key, which it asks for under "Authorize".
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import orjson
from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.endpoints.plain import PlainRoute

router = APIRouter(route_class=PlainRoute, include_in_schema=False)

_KINDS = {
    "page.html": "text/html",
    "page.js": "text/javascript",
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
}
_COMPRESSED = frozenset({"swagger-ui-bundle.js", "swagger-ui.css"})
_HEADERS = {
    "cache-control": "max-age=3600",
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


@router.get("/openapi.json")
async def document(request: Request) -> Response:
    """The API's description; building it takes 0.3 s, so the first to ask waits for a thread."""
    app = request.app
    if app.openapi_schema is None:
        await context_of(request).worker.run(app.openapi)
    page = app.openapi()
    if root := request.scope.get("root_path"):
        page = page | {"servers": [{"url": root}]}
    return Response(orjson.dumps(page), media_type="application/json")


@router.get("/docs")
async def page(request: Request) -> Response:
    """The page itself, whose links are relative, so that it works behind a proxy's prefix."""
    return _asset("page.html")


@router.get("/docs/{name}")
async def asset(request: Request) -> Response:
    """What the page loads."""
    name: str = request.path_params["name"]
    if name not in _KINDS:
        raise HTTPException(404, "Not Found")
    return _asset(name)


def _asset(name: str) -> Response:
    headers = dict(_HEADERS)
    if name in _COMPRESSED:
        headers["content-encoding"] = "gzip"
    return Response(_read(name), headers=headers, media_type=_KINDS[name])


@cache
def _read(name: str) -> bytes:
    suffix = ".gz" if name in _COMPRESSED else ""
    return (files("server") / "docs_assets" / f"{name}{suffix}").read_bytes()
