"""The HTTP server: uvicorn with our protocol, without its signal handlers and its log lines."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from server.http.connections import ConnectionPool
from server.http.protocol import HttpProtocol

KEEP_ALIVE_S = 75
"""How long a connection may stay idle after a reply."""
CLOSE_S = 5
"""How long open requests may still take once the server has been told to end."""


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handler."""
        yield


def make_server(
    app: ASGIApp, connections: ConnectionPool, *, header_timeout_s: float, **options: Any
) -> HttpServer:
    """A server for `app`; `options` are those of `uvicorn.Config`."""
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
    return HttpServer(config)
