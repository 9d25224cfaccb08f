"""The HTTP server: uvicorn with our protocol, without its signal handlers and its log lines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from server.fronts import FrontTable
from server.http.acceptor import Acceptor
from server.http.connections import ConnectionPool
from server.http.protocol import HttpProtocol
from server.http.tls import Handshakes

KEEP_ALIVE_S = 75
"""How long a connection may stay idle after a reply."""
CLOSE_S = 5
"""How long open requests may still take once the server was asked to end."""


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its caller and bounds the handshakes of TLS."""

    def __init__(
        self,
        config: uvicorn.Config,
        connections: ConnectionPool,
        fronts: FrontTable,
        handshake_timeout_s: float,
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self._fronts = fronts
        self._handshake_timeout_s = handshake_timeout_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Run what precedes the first request, then listen on `sockets`.

        uvicorn itself would count no handshake, and leave each asyncio's 60 s.
        """
        await super().startup(sockets=[])
        make_protocol = partial(
            cast(Any, self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for listener in sockets or ():
            self.servers.append(await self._open(listener, make_protocol))

    async def _open(
        self, listener: socket.socket, make_protocol: Callable[[], HttpProtocol]
    ) -> Any:
        config = self.config
        if self._fronts.num_fronts == 1 and config.ssl is None:
            return await asyncio.get_running_loop().create_server(
                make_protocol, sock=listener, backlog=config.backlog
            )
        handshakes = None
        if config.ssl is not None:
            limits = self._handshake_timeout_s, self._connections
            handshakes = Handshakes(make_protocol, config.ssl, *limits)
        listener.listen(config.backlog)
        return Acceptor(listener, make_protocol, self._connections, self._fronts, handshakes)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handler."""
        yield


def make_server(
    app: ASGIApp,
    connections: ConnectionPool,
    fronts: FrontTable,
    *,
    header_timeout_s: float,
    **options: Any,
) -> HttpServer:
    """Make a server for `app`.

    Args:
        fronts: with several of them, each takes its part of the connections.
        header_timeout_s: how long a handshake of TLS may take, and then the headers of a request.
        options: those of `uvicorn.Config`.
    """
    protocol = partial(HttpProtocol, pool=connections, header_timeout_s=header_timeout_s)
    for name in ("uvicorn.error", "uvicorn.access"):  # what is worth a line is logged by us
        logging.getLogger(name).setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        http=cast(Any, protocol),
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_S,
        ws="none",
        lifespan="on",
        server_header=False,
        **options,
    )
    return HttpServer(config, connections, fronts, header_timeout_s)
