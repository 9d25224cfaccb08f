"""HTTP/1.1 on a connection: uvicorn's parser and cycle, with bounds on what precedes a body.

uvicorn itself bounds neither the size of a request's headers nor the time they may take, drops the
body of a request that offers an upgrade, and refuses malformed requests in plain text. This
subclass adds the bounds and the replies. A request that arrives in one piece passes through one
counter and two dictionary operations more than in uvicorn.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httptools
import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from server.errors import ApiError
from server.http.connections import Connection, ConnectionPool
from server.http.disconnect import STALL_S, UnreadClock

logger = logging.getLogger("tailrace.http")

MAX_HEADER_BYTES = 64 << 10
"""Bytes of a request line and its headers, or of what follows a chunked body."""
LINGER_S = 1.0
"""A refused client may still be sending: what it sends is read and dropped for so long, because
closing earlier would reset the connection before the client has seen the reply."""

_IDLE, _HEADERS, _BODY = range(3)
"""Which part of a message the parser waits for: its first byte, the end of its headers, its end."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. Refuses with OpenAI's error object and ends the connection after it.

    Attributes:
        handshake: what the pool counts while a handshake of TLS goes on, in place of this.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        pool: ConnectionPool,
        header_timeout_s: float,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.pool = pool
        self.handshake: Connection | None = None
        self._header_timeout_s = header_timeout_s
        self._deadline: asyncio.TimerHandle | None = None
        self._part = _IDLE
        self._header_bytes = 0
        self._moved = False
        self._refused = False
        self._upgrading = False

    # -- the connection -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock: the headers of the first request are due."""
        super().connection_made(transport)
        self._unread = UnreadClock(transport, self._give_up)
        self._start_clock()
        if self.handshake is not None:
            self.pool.closed(self.handshake)
            self.handshake = None
        self.pool.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop every clock."""
        self._stop_clock()
        self._unread.stop()
        self.pool.closed(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def pause_writing(self) -> None:
        """Wait until the client has read some of what is written, but not for ever."""
        super().pause_writing()
        self._unread.start()

    def resume_writing(self) -> None:
        """Write again."""
        super().resume_writing()
        self._unread.stop()

    def _give_up(self) -> None:
        client = "{}:{}".format(*self.client) if self.client else "a client"
        logger.info("%s has read nothing for %g s: its connection is ended", client, STALL_S)
        self.abort()

    def data_received(self, data: bytes) -> None:
        """Parse what came, and refuse headers that grow past their bound or never end."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._moved = False
        self._feed(data)
        if self._refused or self.transport.is_closing():
            return
        if not self._moved:  # neither headers ended in this piece nor was any of it body
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(_too_large())
        if self.cycle is None or self.cycle.response_complete:
            self._start_clock()  # nobody answers, so nothing else would end the connection

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, ApiError):
                self._refuse(error.__context__)
            else:
                self._refuse(ApiError(400, f"this is not a valid HTTP request: {error}"))

    # -- the parser's callbacks ---------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._part = _HEADERS
        self._header_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Hand the request to the application, unless its headers are refused."""
        num_bytes = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
        if num_bytes > MAX_HEADER_BYTES:
            raise _too_large()
        self._check_version()
        self._moved = True
        if self.parser.should_upgrade():  # httptools would now skip the body
            self._upgrading = True
            return
        self._part = _BODY
        self._header_bytes = 0
        self._stop_clock()
        if not self.flow.write_paused:  # what waits is more from now on
            self._unread.stop()
        self.pool.busy(self)
        super().on_headers_complete()

    def _check_version(self) -> None:
        """Refuse a request line without a version, and HTTP/1.1 without a Host (RFC 9112, 3.2)."""
        version = self.parser.get_http_version()
        if version == "0.9":
            raise ApiError(400, "the request line must end with a version, such as HTTP/1.1")
        if version == "1.1" and not any(name == b"host" for name, _ in self.headers):
            raise ApiError(400, "a request has a Host header", code="no_host")

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body on."""
        self._moved = True
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request."""
        if not self._upgrading:
            self._part = _IDLE
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._unread.start()  # the last bytes may wait for ever, and a close for them
        if not self.transport.is_closing():
            self.pool.idle(self)

    # -- refusals -----------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Refuse what uvicorn finds malformed."""
        self._refuse(ApiError(400, msg))

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse the request again without its offer to upgrade, which HTTP lets a server ignore."""
        self._upgrading = False
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(ApiError(405, "CONNECT is not supported"))
            return
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b"close" if b"close" in value.lower() else b"keep-alive"
            if name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join([*lines, b"\r\n"]) + rest)

    def _start_clock(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._header_timeout_s, self._on_deadline)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if self._part == _HEADERS and not self._refused:
            limit = f"{self._header_timeout_s:g} s (--header-timeout)"
            self._refuse(ApiError(408, f"the headers were not complete within {limit}"))
        else:
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        """Answer with the error, then end the connection."""
        if self.transport.is_closing():
            return
        self._refused = True
        self._stop_clock()
        client = "{}:{}".format(*self.client) if self.client else "a client"
        logger.info("refused a request of %s: %d %s", client, error.status, error.message)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._part != _BODY:  # an earlier request of a pipeline: let it end
            self.cycle.keep_alive = False
            return
        if not answering or not self.cycle.response_started:
            body = orjson.dumps(error.body())
            head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
            end = b"connection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[error.status] + head + end + body)
        if answering or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self.transport.write_eof()
            self._deadline = self.loop.call_later(LINGER_S, self.transport.close)


def _too_large() -> ApiError:
    return ApiError(431, f"the headers must be at most {MAX_HEADER_BYTES} bytes")
