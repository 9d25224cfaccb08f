"""The open connections of a server, kept below the limit of open files.

Running out of file descriptors would stop a server from accepting anything, its health checks
included, without a word. So a connection beyond the limit takes the place of one that has been idle
longest; where all are busy, only routes that are open to health checks are answered on it.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable
from typing import Protocol

from server.fronts import FrontTable

logger = logging.getLogger("tailrace.http")

RESERVED_FILES = 128
"""Descriptors for all else: the engine's sockets and pipes, files, and connections over the limit
that are still being closed or are answered a 503."""
LOG_EVERY_S = 10.0
UNLIMITED = 1 << 20
"""Connections allowed where the system sets no limit."""


class Connection(Protocol):
    """A connection as the pool sees it."""

    def abort(self) -> None:
        """End the connection at once."""
        ...


class ConnectionPool:
    """Counts connections and knows which are idle, those idle longest first.

    Attributes:
        num_open: connections open now, those whose handshake of TLS goes on among them.
        on_full: called for each connection that found the pool full.
    """

    def __init__(
        self, limit: int, fronts: FrontTable, on_full: Callable[[], None] = lambda: None
    ) -> None:
        self._limit = limit
        self._fronts = fronts
        self._on_full = on_full
        self.num_open = 0
        self._idle: dict[Connection, None] = {}
        self._logged_at = -LOG_EVERY_S

    @property
    def full(self) -> bool:
        """Whether more connections are open than the limit allows."""
        return self.num_open > self._limit

    def opened(self, connection: Connection) -> None:
        """Count a new connection; where it is one too many, close the one idle longest."""
        self.num_open += 1
        self._fronts.set_connections(self.num_open)
        if self.full:
            self._on_full()
            self._log()
            if self._idle:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                oldest.abort()
        self._idle[connection] = None

    def closed(self, connection: Connection) -> None:
        """Stop counting a connection."""
        self.num_open -= 1
        self._fronts.set_connections(self.num_open)
        self._idle.pop(connection, None)

    def busy(self, connection: Connection) -> None:
        """Note that a request begins."""
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Note that a request was answered."""
        self._idle[connection] = None

    def _log(self) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            logger.warning(
                "over %d connections are open, which is what the limit of open files (ulimit -n) "
                "allows: idle ones are closed, and requests refused where none is idle",
                self._limit,
            )


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; the number of connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return UNLIMITED
    return max(hard - RESERVED_FILES, hard // 4)
