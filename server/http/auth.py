"""The inner middleware of every request: API keys, origins, and whether requests are taken."""

from __future__ import annotations

import hashlib
import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ApiError, shutting_down, too_many_connections
from server.http.account import account_of, header, route_path
from server.http.connections import ConnectionPool
from server.http.lifecycle import Lifecycle
from server.http.origins import Origins

_ALWAYS_OPEN = frozenset({"/health", "/ready", "/ping"})
_NO_KEY = _ALWAYS_OPEN | {"/", "/docs", "/openapi.json"}
_NO_KEY_BELOW = ("/docs/", "/page/")
"""Paths that need no key, and the beginning of others."""
_OPEN_WHILE_DRAINING = _ALWAYS_OPEN | {"/metrics", "/version"}


class Gate:
    """Lets in requests that may use the server, while it can take them.

    They need a key (where there are keys), a known host and no foreign origin. While the server
    shuts down, or has run out of connections, only health checks pass.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        lifecycle: Lifecycle,
        connections: ConnectionPool,
        origins: Origins,
        api_keys: tuple[str, ...],
        open_metrics: bool,
    ) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._connections = connections
        self._origins = origins
        self._owners = {key.encode(): hashlib.sha256(key.encode()).digest() for key in api_keys}
        self._open = _NO_KEY | ({"/metrics"} if open_metrics else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = route_path(scope)
            self._origins.check(scope)
            if self._owners and path not in self._open and not path.startswith(_NO_KEY_BELOW):
                self._check_key(scope)
            if self._lifecycle.draining and path not in _OPEN_WHILE_DRAINING:
                raise shutting_down()
            if self._connections.full and path not in _ALWAYS_OPEN:
                raise too_many_connections()
        await self._app(scope, receive, send)

    def _check_key(self, scope: Scope) -> None:
        kind, _, given = (header(scope, b"authorization") or "").partition(" ")
        own = header(scope, b"x-api-key") or ""  # as Anthropic's clients send it
        sent = [own.strip(), given.strip() if kind.lower() == "bearer" else ""]
        raws = [key.encode("latin-1") for key in sent if key]
        known = [key for raw in raws for key in self._owners if hmac.compare_digest(raw, key)]
        if not known:
            words = "a valid API key is needed: Authorization: Bearer KEY, or X-Api-Key: KEY"
            headers = {"www-authenticate": "Bearer"}
            raise ApiError(401, words, code="invalid_api_key", headers=headers)
        account_of(scope).owner = self._owners[known[0]]
