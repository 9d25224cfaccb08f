"""Connections of TLS from their first byte on, so that the pool counts those still shaking hands.

A server of asyncio notifies its protocols of a connection of TLS when the handshake has ended, and
of one whose handshake failed never.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from server.http.connections import ConnectionPool
from server.http.protocol import HttpProtocol

logger = logging.getLogger("tailrace.http")


class Handshake:
    """A connection whose handshake goes on, as the pool sees it."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def abort(self) -> None:
        """End the connection at once."""
        self._task.cancel()


class Handshakes:
    """Gives each accepted connection to a protocol once its handshake is done.

    Args:
        timeout_s: how long a handshake may take.
    """

    def __init__(
        self,
        make_protocol: Callable[[], HttpProtocol],
        context: ssl.SSLContext,
        timeout_s: float,
        pool: ConnectionPool,
    ) -> None:
        self._make_protocol = make_protocol
        self._context = context
        self._timeout_s = timeout_s
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, connection: socket.socket) -> None:
        """Begin a connection's handshake; the pool counts it from now on."""
        protocol = self._make_protocol()
        task = self._loop.create_task(self._shake_hands(connection, protocol))
        protocol.handshake = Handshake(task)
        self._pool.opened(protocol.handshake)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if protocol.handshake is not None:
                self._pool.closed(protocol.handshake)
                connection.close()

        task.add_done_callback(ended)

    async def _shake_hands(self, connection: socket.socket, protocol: HttpProtocol) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout_s,
            )
        except OSError as error:  # an SSLError is one
            logger.debug("a handshake failed: %r", error)

    def close(self) -> None:
        """End the connections whose handshakes go on."""
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for their ends."""
        if self._tasks:
            await asyncio.wait(self._tasks)
