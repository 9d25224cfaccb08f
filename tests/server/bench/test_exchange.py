"""One request over real sockets: what is measured, and every way in which it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from server.bench.events import EventTimes
from server.bench.exchange import Connections, Exchange
from server.bench.target import Target, parse_target
from tests.server.bench.fake_server import FakeServer, fake_server

LONG_S = 60.0


def target_of(fake: FakeServer) -> Target:
    return parse_target(fake.url, key=None)


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Connections]:
    connections = Connections(target)
    yield connections
    connections.close()
    await asyncio.sleep(0)  # sockets close a turn later


async def send(connections: Connections, target: Target, **body: Any) -> Exchange:
    body = {"prompt": [1, 2], "max_tokens": 3} | body
    times = EventTimes() if body.get("stream") else None
    return await connections.exchange(target.post("/v1/completions", body), LONG_S, times)


async def test_a_reply_in_one_piece() -> None:
    with fake_server(cached_tokens=1) as fake:
        target = target_of(fake)
        async with connected(target) as connections:
            for _ in range(3):
                found = await send(connections, target)
                assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (2, 3, 1)
                assert found.error is None
                assert found.first_token_s is None
        assert fake.num_connections == 1


async def test_a_stream() -> None:
    with fake_server(token_s=0.02) as fake:
        async with connected(target_of(fake)) as connections:
            found = await send(connections, target_of(fake), stream=True)
        assert (found.output_tokens, found.num_chunks, len(found.gaps)) == (3, 3, 2)
        assert found.first_token_s is not None
        assert 0.0 < found.first_token_s <= found.seconds
        assert found.streaming_s == pytest.approx(sum(found.gaps))
        assert min(found.gaps) > 0.015  # a timer of 20 ms does not end much too early


async def test_a_connection_that_was_closed_while_idle_is_no_error() -> None:
    with fake_server(closes=True) as fake:
        async with connected(target_of(fake)) as connections:
            for _ in range(4):
                assert (await send(connections, target_of(fake))).error is None
        assert fake.num_connections >= 4


async def test_a_reply_that_broke_off_is_not_asked_for_again() -> None:
    with fake_server(breaks=("drop", 2)) as fake:
        async with connected(target_of(fake)) as connections:
            assert (await send(connections, target_of(fake), stream=True)).error is None
            found = await send(connections, target_of(fake), stream=True)
        assert found.error == "the server closed the connection"
        assert len(fake.bodies) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"refuses": 500}, "500: not today"),
        ({"key": "k"}, "401: wrong key"),
        ({"breaks": ("drop", 1)}, "the server closed the connection"),
        ({"has_usage": False}, "the reply has no usage, from which tokens are counted"),
    ],
)
async def test_failures(fields: dict[str, Any], error: str, stream: bool) -> None:
    with fake_server(**fields) as fake:
        async with connected(target_of(fake)) as connections:
            found = await send(connections, target_of(fake), stream=stream)
        assert found.error == error
        assert found.output_tokens == 0


async def test_an_error_within_a_stream() -> None:
    with fake_server(breaks=("event", 1)) as fake:
        async with connected(target_of(fake)) as connections:
            found = await send(connections, target_of(fake), stream=True)
        assert found.error == "in the stream: it broke"


async def test_a_server_that_never_answers() -> None:
    with fake_server(hangs=True) as fake:
        target = target_of(fake)
        request = target.post("/v1/completions", {"prompt": [1]})
        async with connected(target) as connections:
            found = await connections.exchange(request, 0.05)
        assert found.error == "no reply within 0.05 s"


async def test_a_server_that_is_gone() -> None:
    with fake_server() as fake:
        target = target_of(fake)
    async with connected(target) as connections:
        found = await send(connections, target)
    assert found.error == "Connection refused"


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n" + b'{"usage": {"prompt_tokens": 2}}', None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno", "the reply is not JSON"),
        (b"SSH-2.0-x\r\n", "the reply is not HTTP/1.1: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nno", "the server closed the connection"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "302: no reason given"),
    ],
)
async def test_replies_as_bytes(raw: bytes, error: str | None) -> None:
    """A reply without a length ends with its connection; what is no reply is reported as such."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        target = parse_target(f"http://127.0.0.1:{port}", key=None)
        async with connected(target) as connections:
            found = await connections.exchange(target.get("/"), LONG_S)
    if error is None:
        assert (found.error, found.input_tokens) == (None, 2)
    else:
        assert found.error is not None
        assert found.error.startswith(error)
