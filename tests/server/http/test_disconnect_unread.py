"""Connections whose clients do not read what is written to them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from server.fronts import FrontTable
from server.http import disconnect
from server.http.connections import ConnectionPool
from server.http.disconnect import UnreadClock
from server.http.protocol import HttpProtocol
from tests.fakes import FakeEngine
from tests.server.conftest import Site, eventually, on_a_port

LIMIT_S = 0.3


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnect, "STALL_S", LIMIT_S)


@asynccontextmanager
async def asked(site: Site, path: str, **body: object) -> AsyncIterator[socket.socket]:
    """A connection with a request on it, and no room for much of the reply."""
    raw = json.dumps({"model": "fake", "prompt": "abc"} | body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", int(site.url.rpartition(":")[2])))
        await loop.sock_sendall(client, f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        yield client


def endless() -> FakeEngine:
    return FakeEngine(lambda request, choice, position: 97, max_model_len=1 << 20)


async def test_a_stream_that_nobody_reads_ends_with_its_request() -> None:
    engine = endless()
    async with on_a_port(engine, max_logprobs=20) as site:
        fields = {"stream": True, "max_tokens": 1 << 19, "logprobs": 20}
        async with asked(site, "/v1/completions", **fields):
            await eventually(lambda: bool(engine.aborted))
            await eventually(lambda: site.context.connections.num_open == 0)


async def test_a_reply_that_nobody_reads_ends_with_its_connection() -> None:
    engine = endless()
    async with on_a_port(engine, max_logprobs=20) as site:
        async with asked(site, "/v1/completions", max_tokens=16_000, logprobs=20):
            await eventually(lambda: len(engine.requests) == 1)
            await eventually(lambda: site.context.connections.num_open == 0)
        assert not engine.aborted


async def test_a_stream_that_is_read_slowly_goes_on() -> None:
    """It takes many times as long as a client may leave it alone."""
    engine = endless()
    async with on_a_port(engine, max_logprobs=20) as site:
        fields = {"stream": True, "max_tokens": 600, "logprobs": 20}
        async with asked(site, "/v1/completions", **fields) as client:
            loop, read, whole = asyncio.get_running_loop(), b"", 0
            while not read.endswith(b"0\r\n\r\n"):
                piece = await loop.sock_recv(client, 32 << 10)
                assert piece
                read, whole = read[-5:] + piece, whole + len(piece)
                await asyncio.sleep(LIMIT_S / 20)
        assert whole > 500_000
        assert not engine.aborted


class Transport:
    """Holds so many bytes that were not sent, whatever is written."""

    def __init__(self) -> None:
        self.unsent = 1000
        self.num_written = 0
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, raw: bytes) -> None:
        self.num_written += len(raw)

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_extra_info(self, name: str) -> None:
        return None

    def resume_reading(self) -> None:
        """Nothing comes by itself."""


async def ended(then: Callable[[UnreadClock, Transport], None]) -> bool:
    """Whether the clock ends a connection on which this happens five times, and then nothing."""
    transport, ends = Transport(), list[bool]()
    clock = UnreadClock(cast(asyncio.Transport, transport), lambda: ends.append(True))
    clock.start()
    for _ in range(5):
        await asyncio.sleep(LIMIT_S / 2)
        then(clock, transport)
    return bool(ends)


async def test_a_clock_runs_out_only_where_nothing_is_taken() -> None:
    def take(clock: UnreadClock, transport: Transport) -> None:
        transport.unsent -= 1

    def take_all(clock: UnreadClock, transport: Transport) -> None:
        transport.unsent = 0

    assert await ended(lambda clock, transport: None)
    assert await ended(lambda clock, transport: clock.start()), "a clock that runs goes on"
    assert not await ended(take)
    assert not await ended(take_all)
    assert not await ended(lambda clock, transport: clock.stop())


async def once(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers its first request alone; the next waits until it is over."""
    if scope["path"] == "/first":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"abc"})
    else:
        while (await receive())["type"] != "http.disconnect":
            pass


@pytest.mark.parametrize(("goes_on", "is_full"), [(False, False), (True, False), (True, True)])
async def test_what_waits_after_a_reply_is_timed_until_the_next_request(
    goes_on: bool, is_full: bool
) -> None:
    """The next reply is written behind it, so that what waits no longer says what was read."""
    config = uvicorn.Config(once, log_config=None, lifespan="off")
    config.load()
    transport, pool = Transport(), ConnectionPool(10, FrontTable())
    protocol = HttpProtocol(config, ServerState(), {}, pool=pool, header_timeout_s=60.0)
    protocol.connection_made(cast(asyncio.Transport, transport))
    protocol.data_received(b"GET /first HTTP/1.1\r\nHost: t\r\n\r\n")
    await eventually(lambda: transport.num_written > 0 and protocol.cycle.response_complete)
    if is_full:
        protocol.pause_writing()
    if goes_on:
        protocol.data_received(b"GET /second HTTP/1.1\r\nHost: t\r\n\r\n")
    await asyncio.sleep(2 * LIMIT_S)
    assert transport.aborted == (is_full or not goes_on)
    protocol.connection_lost(ConnectionResetError())
