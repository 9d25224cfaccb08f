"""What is noted of a request while it passes through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

_KEY = "tailrace.account"


@dataclass
class RequestAccount:
    """One HTTP request.

    Attributes:
        request_id: the client's `X-Request-Id`, or one of ours where replies carry it.
        status: of the reply; 0 before it began.
        outcome: how a generation request ended, where the status does not tell.
    """

    request_id: str | None = None
    status: int = 0
    outcome: str | None = None


def attach(scope: Scope, account: RequestAccount) -> None:
    """Let `account_of` find it."""
    scope[_KEY] = account


def account_of(scope: Scope) -> RequestAccount:
    """The request's account; a blank one where no middleware attached any."""
    account: Any = scope.get(_KEY)
    return account if isinstance(account, RequestAccount) else RequestAccount()


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of that name, in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None
