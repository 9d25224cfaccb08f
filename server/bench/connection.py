"""One HTTP/1.1 connection of the client: a request, its reply, then the next.

A client that measures must not be what is measured, so this is a protocol over httptools' parser
and nothing more: no redirects, no proxies, no cookies.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Protocol, cast

import httptools


class ConnectionLostError(Exception):
    """The connection ended before the reply did.

    Attributes:
        had_begun: some of the reply had come.
    """

    def __init__(self, had_begun: bool) -> None:
        super().__init__("the server closed the connection")
        self.had_begun = had_begun


def reason(error: Exception) -> str:
    """Why there is no connection, or none any more, in the system's words."""
    number = getattr(error, "errno", None)
    if isinstance(error, ConnectionError) and number:
        return os.strerror(number)
    return getattr(error, "strerror", None) or str(error)


class Reader(Protocol):
    """What reads the body of a successful reply as it comes."""

    def feed(self, body: bytes, now: float) -> None:
        """Take a part of the body, read at `now`, in seconds."""


class ClientConnection(asyncio.Protocol):
    """A connection to a server, for one request at a time.

    Attributes:
        is_open: the next request can be sent.
        body: the reply's body, where nobody read it as it came or its status is an error's.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.body = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._reply: asyncio.Future[int] | None = None
        self._reader: Reader | None = None
        self._is_read = False
        self._is_framed = False
        self._now = 0.0

    def send(self, request: bytes, reader: Reader | None = None) -> asyncio.Future[int]:
        """Send a whole request; the status comes when the reply has ended.

        Raises:
            ConnectionLostError: from the future.
        """
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._reader, self._is_read, self._is_framed = reader, False, False
        self.body = bytearray()
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._reply

    def close(self) -> None:
        """Hang up."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic()
        try:
            if self._parser is not None:
                self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the reply is not HTTP/1.1: {error}"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        assert self._parser is not None or self._reply is None
        status = self._parser.get_status_code() if self._parser is not None else 0
        if status and not self._is_framed and error is None:
            self.on_message_complete()  # such a reply ends with its connection
        self._fail(ConnectionLostError(bool(status)))

    # what the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_framed = True

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._is_read = self._reader is not None and self._parser.get_status_code() == 200

    def on_body(self, body: bytes) -> None:
        if self._is_read and self._reader is not None:
            self._reader.feed(body, self._now)
        else:
            self.body += body

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.is_open = self.is_open and self._parser.should_keep_alive()
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(self._parser.get_status_code())

    def _fail(self, error: Exception) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
