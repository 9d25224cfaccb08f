"""The account of a request: facts noted on its way, for the metrics, the log and the reply."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from engine.stats import DraftStats
from sampling.params import SamplingParams
from server.http.body_memory import Lease

_KEY = "tailrace.account"


@dataclass(frozen=True)
class DecisionCounts:
    """What a request's decisions read.

    Attributes:
        num_questions: that were answered.
        num_labels: read for them, once for each order of a question's options.
        lowest_label_mass: of all questions, the lowest probability that a reply begins with a
            label.
    """

    num_questions: int
    num_labels: int
    lowest_label_mass: float


@dataclass(frozen=True)
class GenerationReport:
    """What a request that generates or scores reports of it, for its trace.

    Attributes:
        params, max_tokens, num_choices: what was asked for; None and 0 of scoring.
        finish_reasons: of the choices that ended.
        drafts: counts of the drafts of all choices; None without a drafter.
        decisions: counts of a request that was decided; None of others.
        queued_at, started_at, drew_at: when the engine had the request, gave it a row, and had its
            first token, on the monotonic clock in seconds; 0 where it did not come to that, or
            where the engine does not report it.
    """

    model: str
    reply_id: str
    num_prompt_tokens: int
    num_cached: int
    num_generated: int = 0
    params: SamplingParams | None = None
    max_tokens: int = 0
    num_choices: int = 0
    finish_reasons: tuple[str, ...] = ()
    drafts: DraftStats | None = None
    decisions: DecisionCounts | None = None
    queued_at: float = 0.0
    started_at: float = 0.0
    drew_at: float = 0.0


@dataclass
class RequestAccount:
    """One HTTP request.

    Attributes:
        request_id: the client's `X-Request-Id`, or one that was drawn.
        status: status of the reply; 0 before it began.
        outcome: how a generation request ended, where the status does not say.
        reason, code: what a client got whose request was refused or failed, in words and as
            the word for programs, if there is one.
        usage: reports the tokens of a request that generates; None for other requests.
        report: reports more, also of a request that scores.
        without_effect: names of fields of the body that had none.
        body_memory: what a large body may take, what it was parsed into, and other large parts.
        owner: digest of the API key that the request came with; empty where there are no keys.
    """

    request_id: str | None = None
    status: int = 0
    outcome: str | None = None
    reason: str | None = None
    code: str | None = None
    usage: Callable[[], dict[str, Any]] | None = None
    report: Callable[[], GenerationReport] | None = None
    without_effect: Sequence[str] = ()
    body_memory: list[Lease] = field(default_factory=list)
    owner: bytes = b""

    def release_body(self) -> None:
        """Let others have the memory of the body, of which nothing large is kept; twice does no
        harm."""
        for lease in self.body_memory:
            lease.release()


def attach(scope: Scope, account: RequestAccount) -> None:
    """Attach an account, so that `account_of` finds it."""
    scope[_KEY] = account


def account_of(scope: Scope) -> RequestAccount:
    """The request's account; a blank one where no middleware attached any."""
    account: Any = scope.get(_KEY)
    return account if isinstance(account, RequestAccount) else RequestAccount()


def reply_id(prefix: str, given: str | None, scope: Scope) -> str:
    """The id of the reply to a request, after its kind: the body's, else the request's own."""
    return prefix + (given or account_of(scope).request_id or secrets.token_hex(16))


def header(scope: Scope, name: bytes) -> str | None:
    """The value of the first header of that name (in lower case); None without one."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def route_path(scope: Scope) -> str:
    """The path of the request without the prefix of `--root-path`."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path
