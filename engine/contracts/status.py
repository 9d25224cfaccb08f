"""What the engine process reports to its parent, a line of JSON each, over its standard output."""

from __future__ import annotations

import os
import threading

import msgspec

from engine.contracts.info import EngineInfo

FOLDER_PREFIX = "tailrace-"
"""How the names of folders begin that a parent makes for the socket and what its fronts share, and
for nothing else."""


class Status(msgspec.Struct, tag_field="status", tag="", frozen=True):
    """A line from the engine process to its parent."""


class Ready(Status, tag="ready", frozen=True):
    """The engine serves."""

    info: EngineInfo


class Failed(Status, tag="failed", frozen=True):
    """The engine ends: its configuration cannot be served, or it cannot go on."""

    message: str


class Progress(Status, tag="progress", frozen=True):
    """How far a phase of the start is; see `engine.progress.Listener`."""

    phase: str
    done: int
    total: int


class Beat(Status, tag="beat", frozen=True):
    """The process is alive and no step takes too long."""


StatusLine = Ready | Failed | Progress | Beat


class StatusPipe:
    """Writes lines to standard output; what libraries print goes to standard error."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, line: msgspec.Struct) -> None:
        """Write a line to the parent."""
        with self._lock:
            os.write(self._fd, msgspec.json.encode(line) + b"\n")
