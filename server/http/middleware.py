"""What every request passes, as plain ASGI: accounts outside, the gate inside.

Nothing here wraps `receive`, so a disconnect reaches whoever waits for it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError, shutting_down
from server.http.account import RequestAccount, attach, header
from server.http.lifecycle import Lifecycle
from server.metrics import Metrics

logger = logging.getLogger("tailrace")

GENERATION_PATHS = frozenset({"/v1/completions", "/v1/score", "/generative_scoring"})
"""POST requests that are received and end in exactly one outcome."""
_ALWAYS_OPEN = frozenset({"/health", "/ready"})
_OPEN_WHILE_DRAINING = _ALWAYS_OPEN | {"/metrics", "/version"}
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})
_MAX_ID_CHARS = 256


class Accounts:
    """Counts requests, times them, and turns an unforeseen error into a reply."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, lifecycle: Lifecycle, echo_request_id: bool
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._echo_request_id = echo_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        account = RequestAccount(request_id=header(scope, b"x-request-id"))
        if account.request_id is None and self._echo_request_id:
            account.request_id = secrets.token_hex(16)
        attach(scope, account)
        counted = scope["method"] == "POST" and route_path(scope) in GENERATION_PATHS
        if counted:
            self._metrics.received.inc()
        began = time.perf_counter()
        self._lifecycle.enter()
        try:
            await self._run(scope, receive, send, account)
        except asyncio.CancelledError:
            account.outcome = "abort"
            raise
        finally:
            self._lifecycle.leave()
            if counted:
                self._metrics.outcomes[account.outcome or _outcome(account.status)].inc()
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.http(route, method, account.status, time.perf_counter() - began)

    async def _run(
        self, scope: Scope, receive: Receive, send: Send, account: RequestAccount
    ) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                account.status = message["status"]
                if self._echo_request_id and account.request_id is not None:
                    value = account.request_id.encode("latin-1")
                    message["headers"].append((b"x-request-id", value))
            await send(message)

        try:
            if account.request_id is not None and len(account.request_id) > _MAX_ID_CHARS:
                limit, length = _MAX_ID_CHARS, len(account.request_id)
                account.request_id = None
                raise ApiError(400, f"X-Request-Id must be at most {limit} long, got {length}")
            await self._app(scope, receive, noting)
        except ApiError as error:
            await error.response()(scope, receive, noting)
        except Exception:
            logger.exception("%s %s broke", scope["method"], scope["path"])
            if account.status:
                account.outcome = "server_error"
                raise
            internal = ApiError(500, "internal error", code="internal_error")
            await internal.response()(scope, receive, noting)


class Gate:
    """Lets in who has a key, while the server is not shutting down."""

    def __init__(
        self, app: ASGIApp, *, lifecycle: Lifecycle, api_keys: tuple[str, ...], open_metrics: bool
    ) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._keys = [key.encode() for key in api_keys]
        self._open = _ALWAYS_OPEN | ({"/metrics"} if open_metrics else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = route_path(scope)
            if self._keys and path not in self._open:
                self._check_key(scope)
            if self._lifecycle.draining and path not in _OPEN_WHILE_DRAINING:
                raise shutting_down()
        await self._app(scope, receive, send)

    def _check_key(self, scope: Scope) -> None:
        kind, _, given = (header(scope, b"authorization") or "").partition(" ")
        raw = given.strip().encode("latin-1")
        known = [hmac.compare_digest(raw, key) for key in self._keys]
        if kind.lower() != "bearer" or not any(known):
            words = "a valid API key is needed: Authorization: Bearer KEY"
            headers = {"www-authenticate": "Bearer"}
            raise ApiError(401, words, code="invalid_api_key", headers=headers)


def route_path(scope: Scope) -> str:
    """The path below `--root-path`."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _outcome(status: int) -> str:
    if status in (429, 503):
        return "rejected"
    if status in (0, 499):
        return "abort"
    if status >= 500:
        return "server_error"
    return "client_error" if status >= 400 else "success"
