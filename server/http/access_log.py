"""One log line a request: who asked for what, and how it ended."""

from __future__ import annotations

import logging
from typing import Any

from starlette.types import Scope

from engine.logs import FIELDS
from server.http.account import RequestAccount

logger = logging.getLogger("tailrace.access")

_REASON_CHARS = 300


class AccessLog:
    """Writes the lines, but for paths that are not to have any."""

    def __init__(self, *, enabled: bool = True, hidden_paths: tuple[str, ...] = ()) -> None:
        self._enabled = enabled
        self._hidden = frozenset(hidden_paths)

    def write(self, scope: Scope, account: RequestAccount, seconds: float) -> None:
        """Log a request that has ended; refused ones with the reason the client got."""
        if not self._enabled or scope["path"] in self._hidden:
            return
        if not logger.isEnabledFor(logging.INFO):
            return
        fields = _fields(scope, account, seconds)
        logger.info("%s", _sentence(fields), extra={FIELDS: fields})


def _fields(scope: Scope, account: RequestAccount, seconds: float) -> dict[str, Any]:
    client = scope.get("client")
    fields: dict[str, Any] = {
        "client": f"{client[0]}:{client[1]}" if client else "-",
        "method": scope["method"],
        "path": scope["path"],
        "status": account.status,
        "seconds": round(seconds, 4),
        "request_id": account.request_id,
    }
    if account.usage is not None:
        usage = account.usage()
        fields |= {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}
    if account.reason is not None:
        fields["reason"] = account.reason[:_REASON_CHARS]
    return fields


def _sentence(fields: dict[str, Any]) -> str:
    """`127.0.0.1:5123 POST /v1/completions 200 in 0.1 s, id 5f…, 12 + 16 tokens`."""
    text = "{client} {method} {path} {status} in {seconds} s, id {request_id}".format(**fields)
    if "prompt_tokens" in fields:
        text += ", {prompt_tokens} + {completion_tokens} tokens".format(**fields)
    if "reason" in fields:
        text += f": {fields['reason']}"
    return text
