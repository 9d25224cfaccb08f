"""The HTTP server: uvicorn with our protocol, without its signal handlers and its log lines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from server.http.connections import ConnectionPool
from server.http.protocol import HttpProtocol
from server.http.tls import TlsListener

KEEP_ALIVE_S = 75
"""How long a connection may stay idle after a reply."""
CLOSE_S = 5
"""How long open requests may still take once the server has been told to end."""


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its caller and bounds the handshakes of TLS."""

    def __init__(
        self, config: uvicorn.Config, connections: ConnectionPool, handshake_timeout_s: float
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self._handshake_timeout_s = handshake_timeout_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Run what precedes the first request, then listen on `sockets`.

        uvicorn itself would count no handshake, and leave each asyncio's 60 s.
        """
        await super().startup(sockets=[])
        config, loop = self.config, asyncio.get_running_loop()
        make_protocol = partial(
            cast(Any, config.http_protocol_class),
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for listener in sockets or ():
            if config.ssl is None:
                plain = await loop.create_server(
                    make_protocol, sock=listener, backlog=config.backlog
                )
                self.servers.append(plain)
            else:
                listener.listen(config.backlog)
                limits = self._handshake_timeout_s, self._connections
                encrypted = TlsListener(listener, make_protocol, config.ssl, *limits)
                self.servers.append(cast(Any, encrypted))  # uvicorn closes it, no more

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handler."""
        yield


def make_server(
    app: ASGIApp, connections: ConnectionPool, *, header_timeout_s: float, **options: Any
) -> HttpServer:
    """Make a server for `app`.

    Args:
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
    return HttpServer(config, connections, header_timeout_s)
