"""A line of a conformance report, and what ends a check early."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["pass", "fail", "refused", "not judged"]


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found.

    Attributes:
        group, check: its place and name.
        status: "refused" where the server answers that it does not do this; "not judged" where
            what the check needs is missing.
        measured: what was seen.
        wanted: what should be.
        odds: of a false alarm; 0 where there is no chance in it.
    """

    group: str
    check: str
    status: Status
    measured: str
    wanted: str = ""
    odds: float = 0.0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a check returns: whether all was well, and why."""

    passed: bool
    measured: str
    wanted: str = ""
    odds: float = 0.0


class NotDoneError(Exception):
    """A check ends without judging.

    Attributes:
        status: "refused" or "not judged", or "fail" for a reply that is none.
    """

    def __init__(self, status: Status, words: str) -> None:
        super().__init__(words)
        self.status = status
