"""The outer middleware of every request: it counts, times and logs each with its one outcome.

It is plain ASGI, and `receive` is not wrapped, so a disconnect reaches whoever waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError
from server.http.access_log import AccessLog
from server.http.account import RequestAccount, attach, header, route_path
from server.http.lifecycle import Lifecycle
from server.metrics import Metrics

if TYPE_CHECKING:
    from server.http.traces import Traces

logger = logging.getLogger("tailrace")

GENERATION_PATHS = frozenset(
    {
        *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"),
        *("/inference/v1/generate", "/generate", "/v1/score", "/generative_scoring"),
        *("/v1/decisions", "/v1/systemone", "/v1/systemone/permute", "/v1/systemone/separate"),
        *("/v1/rerank", "/v2/rerank", "/rerank", "/v1/embeddings"),
        "/invocations",
    }
)
"""Paths whose POST requests count as received and end in exactly one outcome."""
_BELOW_V1 = frozenset(
    {
        *("/completions", "/chat/completions", "/responses", "/messages", "/messages/count_tokens"),
        *("/chat/completions/render", "/models", "/embeddings", "/score"),
        *("/decisions", "/systemone", "/systemone/permute", "/systemone/separate"),
    }
)
"""Paths that are served without their `/v1` too, for clients whose base address has none."""
_TOPS_BELOW_V1 = ("/responses/", "/models/")
"""The beginning of others."""
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})
_MAX_ID_CHARS = 256


class Accounts:
    """Counts, times and logs requests, and turns an unforeseen error into a reply."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        access_log: AccessLog,
        lifecycle: Lifecycle,
        echo_request_id: bool,
        traces: Traces | None = None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log
        self._lifecycle = lifecycle
        self._echo_request_id = echo_request_id
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["path"] = _own_path(scope)
        given_id = header(scope, b"x-request-id")
        account = RequestAccount(request_id=given_id or secrets.token_hex(16))
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
            account.release_body()
            outcome = account.outcome or _outcome(account.status)
            if counted:
                self._metrics.outcomes[outcome].inc()
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "none")
            seconds = time.perf_counter() - began
            self._metrics.http(route, method, account.status, seconds)
            self._access_log.write(scope, account, seconds)
            if counted and self._traces is not None:
                self._traces.record(scope, account, route_path(scope), outcome, seconds)
            # An open connection keeps its last scope: nothing of the request may be held by it.
            account.usage = account.report = None

    async def _run(
        self, scope: Scope, receive: Receive, send: Send, account: RequestAccount
    ) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                account.status = message["status"]
                if self._echo_request_id and account.request_id is not None:
                    value = account.request_id.encode("ascii")
                    message["headers"].append((b"x-request-id", value))
                if account.without_effect:
                    names = ", ".join(account.without_effect).encode("ascii")
                    message["headers"].append((b"x-ignored-fields", names))
            await send(message)

        try:
            _check_request_id(account)
            await self._app(scope, receive, noting)
        except ApiError as error:
            account.reason = error.message
            await error.response(route_path(scope))(scope, receive, noting)
        except Exception:
            logger.exception("%s %s broke", scope["method"], scope["path"])
            if account.status:
                account.outcome = "server_error"
                raise
            internal = ApiError(500, "internal error", code="internal_error")
            await internal.response(route_path(scope))(scope, receive, noting)


def _check_request_id(account: RequestAccount) -> None:
    """Refuse an id that is too long, or that would break or forge a line of a log."""
    given = account.request_id or ""
    if len(given) <= _MAX_ID_CHARS and given.isascii() and given.isprintable():
        return
    account.request_id = None
    if len(given) > _MAX_ID_CHARS:
        words = f"have at most {_MAX_ID_CHARS} characters, got {len(given)}"
    else:
        words = "be of printable ASCII characters"
    raise ApiError(400, f"X-Request-Id must {words}")


def _own_path(scope: Scope) -> str:
    """The path as our routes have it: the prefix of `--root-path` once, and `/v1`.

    The prefix is added to every path, so one that a proxy has left in it is there twice.
    """
    root: str = scope.get("root_path", "")
    path = route_path(scope)
    if root and path.startswith(f"{root}/"):
        path = path.removeprefix(root)
    is_below_v1 = path in _BELOW_V1 or path.startswith(_TOPS_BELOW_V1)
    return f"{root}/v1{path}" if is_below_v1 else f"{root}{path}"


def _outcome(status: int) -> str:
    if status in (429, 503):
        return "rejected"
    if status in (0, 499):
        return "abort"
    if status >= 500:
        return "server_error"
    return "client_error" if status >= 400 else "success"
