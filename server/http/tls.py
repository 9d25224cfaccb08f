"""Connections of TLS from their first byte on, so that the pool counts those still shaking hands.

A server of asyncio tells its protocols of a connection of TLS when the handshake has ended, and of
one whose handshake failed never.
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

RETRY_S = 1.0
"""Seconds until a connection is accepted again where one could not be."""


class Handshake:
    """A connection whose handshake goes on, as the pool sees it."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def abort(self) -> None:
        """End the connection at once."""
        self._task.cancel()


class TlsListener:
    """Accepts connections and gives each to a protocol once its handshake is done.

    Args:
        listener: a socket that listens.
        timeout_s: how long a handshake may take.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], HttpProtocol],
        context: ssl.SSLContext,
        timeout_s: float,
        pool: ConnectionPool,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._context = context
        self._timeout_s = timeout_s
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no more, and end the connections whose handshakes go on."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for their ends."""
        await asyncio.wait([self._accepting, *self._handshakes])

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listener)
            except ConnectionAbortedError:  # by the client, before it was accepted
                continue
            except OSError as error:
                logger.error("no connection can be accepted: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            task = self._loop.create_task(self._shake_hands(connection))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        handshake = Handshake(task)
        protocol = self._make_protocol()
        protocol.handshake = handshake
        self._pool.opened(handshake)
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout_s,
            )
        except (OSError, asyncio.CancelledError) as error:  # an SSLError is an OSError
            logger.debug("a handshake failed: %r", error)
        finally:
            if protocol.handshake is not None:
                self._pool.closed(handshake)
