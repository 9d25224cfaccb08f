"""The page at `/`: static files, open to all, that call the API of the server they came from.

The files reveal no more than the program's source. What the page asks of the API needs the key,
which it keeps in its tab.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.endpoints.plain import PlainRoute
from server.http.account import header

router = APIRouter(route_class=PlainRoute, include_in_schema=False)

INDEX = "index.html"
_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_HEADERS = {
    # Asked each time, and answered 304: a newer server's page must not meet older modules.
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class _File:
    """A file as it is sent: as it is, compressed, and its tag."""

    media_type: str
    plain: bytes
    compressed: bytes
    etag: str


@router.get("/")
async def index(request: Request) -> Response:
    """The page itself, whose links are relative, so that it works behind a proxy's prefix."""
    return _reply(request, INDEX)


@router.get("/page/{name:path}")
async def asset(request: Request) -> Response:
    """What the page loads."""
    name: str = request.path_params["name"]
    return _reply(request, name)


def _reply(request: Request, name: str) -> Response:
    if not context_of(request).config.page or name not in names():
        raise HTTPException(404, "Not Found")
    file = _read(name)
    headers = {**_HEADERS, "etag": file.etag}
    if header(request.scope, b"if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    body = file.plain
    if "gzip" in (header(request.scope, b"accept-encoding") or ""):
        body, headers["content-encoding"] = file.compressed, "gzip"
    return Response(body, headers=headers, media_type=file.media_type)


@cache
def names() -> frozenset[str]:
    """The names of the files that the page may load, and of the page."""
    return frozenset(_walk(files("server") / "page", ""))


def _walk(folder: Traversable, prefix: str) -> list[str]:
    found: list[str] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in _KINDS:
            found.append(prefix + entry.name)
    return found


@cache
def _read(name: str) -> _File:
    plain = files("server").joinpath("page", *name.split("/")).read_bytes()
    return _File(
        media_type=_KINDS[name.rpartition(".")[2]],
        plain=plain,
        compressed=gzip.compress(plain, 9, mtime=0),
        etag=f'"{hashlib.sha256(plain).hexdigest()[:16]}"',
    )
