"""Streams beside thousands of connections that ask for nothing: their gaps stay what they are."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import psutil
import pytest

from tests.serving.process import Server, serve
from tests.serving.watch import Watch

NUM_FRESH = NUM_ANSWERED = 1000
"""Idle connections: some have said nothing yet, some have had a reply."""
NUM_HALF_OPEN = 2000
NUM_SILENT = NUM_FRESH + NUM_ANSWERED + NUM_HALF_OPEN
NUM_STREAMS = 50
NUM_TOKENS = 64
NUM_ATTEMPTS = 3
LONGER_S = 0.25
"""A stream's longest gap may grow by so much."""
NUM_FILES = 5000
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
GET = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module", autouse=True)
def _many_files() -> Iterator[None]:
    """This process holds the other end of each connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < NUM_FILES:
        pytest.skip(f"needs {NUM_FILES} open files, the hard limit (ulimit -Hn) is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, NUM_FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _stream(session: aiohttp.ClientSession, url: str, seed: int, watch: Watch) -> float:
    """The longest time between two pieces of a stream."""
    body = {"prompt": [seed + 5] * 16, "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
    longest, last = 0.0, None
    async with session.post(f"{url}/v1/completions", json=body) as reply:
        assert reply.status == 200
        while await reply.content.readany():
            if last is not None:
                longest = max(longest, watch.since(last))
            last = watch.now()
    return longest


async def _streams(server: Server) -> float:
    connector, watch = aiohttp.TCPConnector(limit=0), Watch(server)
    async with aiohttp.ClientSession(connector=connector) as session:
        tasks = [_stream(session, server.url, seed, watch) for seed in range(NUM_STREAMS)]
        return max(await asyncio.gather(*tasks))


class Silent:
    """Connections that are opened and left alone."""

    def __init__(self, server: Server) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self._address = host, int(port)
        self.idle: list[socket.socket] = []
        self.half_open: list[socket.socket] = []

    def open_all(self) -> None:
        for _ in range(NUM_FRESH):
            self.idle.append(socket.create_connection(self._address))
        for _ in range(NUM_HALF_OPEN):
            self.half_open.append(socket.create_connection(self._address))
            self.half_open[-1].sendall(HEAD)
        for _ in range(NUM_ANSWERED):
            self.idle.append(socket.create_connection(self._address))
            self.idle[-1].sendall(GET)
            reply = b""
            while not reply.endswith(b"}"):  # head and body are two writes
                reply += self.idle[-1].recv(4096)
            assert reply.startswith(b"HTTP/1.1 200")

    def close(self) -> None:
        for each in self.idle + self.half_open:
            each.close()


@contextmanager
def silent(server: Server) -> Iterator[Silent]:
    connections = Silent(server)
    try:
        yield connections
    finally:
        connections.close()


def is_open(connection: socket.socket) -> bool:
    """Whether the server has neither answered nor ended a connection."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    return False


def longest_gap(server: Server) -> float:
    return asyncio.run(_streams(server))


async def _gap_while_opening(server: Server, connections: Silent) -> float:
    """The longest gap of streams while a thread opens the connections."""
    opening = asyncio.create_task(asyncio.to_thread(connections.open_all))
    gap = await _streams(server)
    await opening
    return gap


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gaps_of_streams_beside_4000_silent_connections() -> None:
    """The best of some attempts, alone as beside."""
    alone, opening, beside = [], [], []
    with serve("--header-timeout", "300") as server:
        longest_gap(server)  # the first requests find things cold
        for _ in range(NUM_ATTEMPTS):
            alone.append(longest_gap(server))
            with silent(server) as connections:
                opening.append(asyncio.run(_gap_while_opening(server, connections)))
                beside.append(longest_gap(server))
                held = connections.idle + connections.half_open
                processes = [psutil.Process(server.process.pid), *server.fronts]
                assert sum(process.num_fds() for process in processes) > len(held)
                assert [is_open(each) for each in held] == [True] * NUM_SILENT
    print(f"seconds alone {alone}, while they are opened {opening}, beside them {beside}")
    assert min(opening) < min(alone) + LONGER_S
    assert min(beside) < min(alone) + LONGER_S


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gaps_of_streams_while_the_silent_are_closed() -> None:
    """All are due at about one time: half-open ones get a 408, those without a byte nothing."""
    alone, closing = [], []
    with serve("--header-timeout", "3") as server:
        longest_gap(server)
        for _ in range(NUM_ATTEMPTS):
            alone.append(longest_gap(server))
            with silent(server) as connections:
                connections.open_all()
                closing.append(longest_gap(server))
                for each in connections.half_open:
                    each.settimeout(10)
                    assert each.recv(4096).startswith(b"HTTP/1.1 408")
                assert not any(is_open(each) for each in connections.idle[:NUM_FRESH])
    print(f"seconds alone {alone}, while they are closed {closing}")
    assert min(closing) < min(alone) + LONGER_S
