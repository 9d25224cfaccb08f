"""Accepts connections of a listening socket that several fronts share.

Whoever is idle takes what comes, so a front that is busy, stopped or gone holds up nobody, and what
waits in the socket's queue is lost with none of them. Left alone, the front that wakes first would
take a whole burst. So one that has more connections than another steps back for a moment.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from server.fronts import FrontTable
from server.http.connections import ConnectionPool
from server.http.tls import Handshakes

logger = logging.getLogger("tailrace.http")

LEAD = 2
"""A front steps back when it has so many connections more than another."""
STEP_BACK_S = 0.001
MAX_BATCH = 8
"""Connections a front takes in one go, however many it has already."""
RETRY_S = 1.0
"""How long to wait after the system refused a connection, as when files run out."""


class Acceptor:
    """Accepts connections and makes their protocols, until closed.

    Args:
        listener: a socket that listens.
        handshakes: what connections of TLS begin with; None for others.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        connections: ConnectionPool,
        fronts: FrontTable,
        handshakes: Handshakes | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make_protocol = make_protocol
        self._connections = connections
        self._fronts = fronts
        self._handshakes = handshakes
        self._beginning: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more; this front's end of the socket is closed."""
        self._loop.remove_reader(self._listener)
        if self._waiting is not None:
            self._waiting.cancel()
        self._listener.close()
        if self._handshakes is not None:
            self._handshakes.close()

    async def wait_closed(self) -> None:
        """Wait until no handshake goes on; uvicorn itself waits for the connections."""
        if self._handshakes is not None:
            await self._handshakes.wait_closed()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._on_readable)

    def _on_readable(self) -> None:
        while not self._leads:
            if not self._accept():
                return
        self._pause(STEP_BACK_S)

    @property
    def _leads(self) -> bool:
        """Whether another front should go first."""
        mine = self._connections.num_open + len(self._beginning)
        return mine > self._fronts.least_connections + LEAD

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._waiting = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        """Take what the others have left, and go on."""
        self._listen()
        for _ in range(MAX_BATCH):
            if not self._accept():
                return

    def _accept(self) -> bool:
        """Begin one connection; returns whether there was one."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionAbortedError:
            return True
        except OSError as error:
            logger.error("a connection was not accepted: %s", error.strerror)
            self._pause(RETRY_S)
            return False
        connection.setblocking(False)
        if self._handshakes is not None:
            self._handshakes.begin(connection)
            return True
        task = self._loop.create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        return True

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            logger.debug("a connection ended before it began: %s", error)
            connection.close()
