"""The account of a request: facts noted on its way, for the metrics, the log and the reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

_KEY = "tailrace.account"


@dataclass
class RequestAccount:
    """One HTTP request.

    Attributes:
        request_id: the client's `X-Request-Id`, or one that was drawn.
        status: status of the reply; 0 before it began.
        outcome: how a generation request ended, where the status does not tell.
        reason: what a client was told whose request was refused or failed.
        usage: tells the tokens of a request that generates; None for other requests.
    """

    request_id: str | None = None
    status: int = 0
    outcome: str | None = None
    reason: str | None = None
    usage: Callable[[], dict[str, Any]] | None = None


def attach(scope: Scope, account: RequestAccount) -> None:
    """Attach an account, so that `account_of` finds it."""
    scope[_KEY] = account


def account_of(scope: Scope) -> RequestAccount:
    """The request's account; a blank one where no middleware attached any."""
    account: Any = scope.get(_KEY)
    return account if isinstance(account, RequestAccount) else RequestAccount()


def header(scope: Scope, name: bytes) -> str | None:
    """The value of the first header of that name (in lower case); None without one."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None
