"""What the supervisor and its fronts say to each other: lines of JSON over pipes."""

from __future__ import annotations

import msgspec

from engine.contracts.info import EngineInfo
from engine.logs import LogFormat
from server.command.fronts.front import FrontConfig


class FrontStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first line to a front.

    Attributes:
        index: the front's row in the table that all fronts share.
        listener_fd: the listening socket. table_fd: the table's file.
        http_log_level: least level of lines about connections; None for `log_level`.
    """

    front: FrontConfig
    index: int
    num_fronts: int
    listener_fd: int
    table_fd: int
    log_level: str
    log_format: LogFormat
    http_log_level: str | None


class _Line(msgspec.Struct, tag_field="line", frozen=True):
    """A later line, either way."""


class Attach(_Line, tag="attach", frozen=True):
    """The engine serves: connect to it, and answer."""

    info: EngineInfo
    pid: int
    address: str


class EngineFailure(_Line, tag="engine_failure", frozen=True):
    """Why the engine cannot serve, None once it can again; `ended`: it never will."""

    reason: str | None
    ended: bool


class Drain(_Line, tag="drain", frozen=True):
    """Refuse new requests; say so when the open ones have ended, or the time is over."""

    timeout_s: float


class FailAll(_Line, tag="fail_all", frozen=True):
    """Answer every open request with an error: the engine's, or None for a server that ends."""

    reason: str | None


class End(_Line, tag="end", frozen=True):
    """Close all connections and end."""


class Loaded(_Line, tag="loaded", frozen=True):
    """The front has its tokenizer and its modules."""


class Answering(_Line, tag="answering", frozen=True):
    """The front accepts connections."""


class Drained(_Line, tag="drained", frozen=True):
    """No request is open any more, or the time was over."""

    in_time: bool


class StartFailed(_Line, tag="failed", frozen=True):
    """The front cannot start, for a reason that the user can mend."""

    message: str


ToFront = Attach | EngineFailure | Drain | FailAll | End
ToSupervisor = Loaded | Answering | Drained | StartFailed
