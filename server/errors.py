"""Errors as OpenAI's clients expect them: one nested object, whatever went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from starlette.responses import Response

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = _TYPES | {413: "request_too_large", 503: "overloaded_error"}
ANTHROPIC_PATH = "/v1/messages"
"""The path below which, and at which, errors have Anthropic's shape."""
SYSTEMONE_PATH = "/v1/systemone"
"""The path below which, and at which, errors have TypeSafe's shape, and a 400 is a 422."""
_INVALID = "invalid_request_error"
RETRY_AFTER_S = 1
TOO_LONG = "context_length_exceeded"
"""The code of the refusal of a prompt that does not fit the context."""
CLIENT_GONE = 499
"""The status of a request whose client left, or cancelled it."""
REPLICA_LOST = "replica_lost"
"""The code of the error that another replica may spare a client."""


class ApiError(Exception):
    """An error reply.

    Attributes:
        status: HTTP status.
        message: what is wrong, in words.
        param: field of the request that the error is about.
        code: a word for programs, such as "context_length_exceeded".
        headers: headers of the reply.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    def __reduce__(self) -> tuple[Any, ...]:  # big bodies are checked in another process
        return _rebuild, (self.status, self.message, self.param, self.code, self.headers)

    def body(self) -> dict[str, Any]:
        """The reply's JSON object."""
        kind = _TYPES.get(self.status)
        if kind is None:
            kind = _INVALID if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def anthropic_body(self) -> dict[str, Any]:
        """The reply's JSON object in Anthropic's shape."""
        kind = _ANTHROPIC_TYPES.get(self.status)
        if kind is None:
            kind = _INVALID if self.status < 500 else "api_error"
        error: dict[str, Any] = {"type": kind, "message": self.message}
        if self.code is not None:
            error["details"] = {"error_code": self.code}
        return {"type": "error", "error": error}

    def detail_body(self) -> dict[str, Any]:
        """The reply's JSON object as FastAPI's validation errors have it."""
        parts = re.findall(r"[^.\[\]]+", self.param or "")
        loc = ["body", *(int(part) if part.isdigit() else part for part in parts)]
        return {"detail": [{"loc": loc, "msg": self.message, "type": self.code or "value_error"}]}

    def response(self, path: str) -> Response:
        """The reply, in the shape that clients of a path read."""
        if _is_within(path, ANTHROPIC_PATH):
            return json_response(self.anthropic_body(), self.status, self.headers)
        if _is_within(path, SYSTEMONE_PATH):
            status = 422 if self.status == 400 else self.status
            return json_response(self.detail_body(), status, self.headers)
        return json_response(self.body(), self.status, self.headers)


def _is_within(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def _rebuild(
    status: int, message: str, param: str | None, code: str | None, headers: dict[str, str]
) -> ApiError:
    return ApiError(status, message, param=param, code=code, headers=headers)


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Any JSON value as a reply; bytes are taken as JSON already."""
    raw = content if isinstance(content, bytes) else orjson.dumps(content)
    return Response(raw, status, headers, media_type="application/json")


def bad_request(param: str | None, message: str, code: str | None = None) -> ApiError:
    """A 400: the client can mend the request."""
    return ApiError(400, message, param=param, code=code)


class ClientNames(dict[str, str]):
    """What the clients of an endpoint call the fields of a spec; it is used for errors alone.

    A field that is not listed has the same name in requests.
    """

    def __missing__(self, field: str) -> str:
        return field

    def refuse(self, field: str, words: str, code: str | None = None) -> ApiError:
        """A 400 about a field of a spec: the client's name of it, then these words."""
        name = self[field]
        return bad_request(name, f"{name} {words}", code)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let what is refused within by the name of a spec's field have the client's name of it."""
        try:
            yield
        except ApiError as error:
            field = re.split(r"[.\[]", error.param or "", maxsplit=1)[0]
            if error.param is not None and field in self:
                error.param = self[field] + error.param.removeprefix(field)
                if error.message.startswith(field):
                    error.message = self[field] + error.message.removeprefix(field)
            raise


def too_long(field: str, num_tokens: str, max_model_len: int) -> ApiError:
    """The refusal of a prompt that does not fit the context.

    Args:
        num_tokens: how many it has, or at least has, in words.
    """
    return bad_request(
        field,
        f"{field} must leave room in the context of {max_model_len} tokens (--max-model-len), "
        f"got {num_tokens} tokens",
        TOO_LONG,
    )


def overloaded(message: str) -> ApiError:
    """A 429: the request may work later."""
    headers = {"retry-after": str(RETRY_AFTER_S)}
    return ApiError(429, message, code="queue_full", headers=headers)


def shutting_down() -> ApiError:
    """A 503 of a server that ends: another server may take the request."""
    headers = {"retry-after": str(RETRY_AFTER_S), "connection": "close"}
    return ApiError(503, "the server is shutting down", code="shutting_down", headers=headers)


def too_many_connections() -> ApiError:
    """A 503 of a server at its limit of open files."""
    headers = {"retry-after": str(RETRY_AFTER_S), "connection": "close"}
    message = "the server has too many open connections"
    return ApiError(503, message, code="too_many_connections", headers=headers)


def engine_dead(reason: str) -> ApiError:
    """A 500 of a server whose engine is gone."""
    return ApiError(500, f"the engine is dead: {reason}", code="engine_dead")


def held(reason: str, code: str) -> ApiError:
    """A 503 of a server whose engine is paused or asleep."""
    return ApiError(503, reason, code=code, headers={"retry-after": str(RETRY_AFTER_S)})


def aborted() -> ApiError:
    """A 503 of a request that a command ended, and that has nothing to show."""
    return held("the request was aborted by a command to the server", "aborted")


def replica_lost(reason: str) -> ApiError:
    """A 503 of a request whose replica is gone: another may take it."""
    headers = {"retry-after": str(RETRY_AFTER_S)}
    return ApiError(503, reason, code=REPLICA_LOST, headers=headers)
