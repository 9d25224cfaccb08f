"""Connections of a shared listening socket: everybody's, evenly, and none lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from server.fronts import FrontTable, make_table_file
from server.http import acceptor as module
from server.http.acceptor import Acceptor
from server.http.connections import ConnectionPool
from tests.server.conftest import eventually


class Protocol(asyncio.Protocol):
    """One connection of a front, as its pool sees it."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.pool.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.closed(self)

    def abort(self) -> None:
        """End the connection at once."""
        self.transport.abort()


class Site:
    """Several fronts on one listening socket, all in this event loop."""

    def __init__(self, num_fronts: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        fd = make_table_file(num_fronts)
        self.tables = [FrontTable(num_fronts, index, fd) for index in range(num_fronts)]
        self.pools = [ConnectionPool(10_000, table) for table in self.tables]
        self.acceptors: list[Acceptor] = []
        self.clients: list[socket.socket] = []

    def open(self, index: int) -> None:
        """Let a front accept."""
        self.tables[index].enter()
        self.acceptors.append(
            Acceptor(
                self.listener.dup(),
                lambda: Protocol(self.pools[index]),
                self.pools[index],
                self.tables[index],
                None,
            )
        )

    def connect(self, count: int) -> None:
        address = self.listener.getsockname()
        self.clients += [socket.create_connection(address) for _ in range(count)]

    @property
    def counts(self) -> list[int]:
        return [pool.num_open for pool in self.pools]


SiteOf = Callable[[int], Site]


@pytest_asyncio.fixture
async def site_of() -> AsyncIterator[SiteOf]:
    sites: list[Site] = []

    def make(num_fronts: int) -> Site:
        sites.append(Site(num_fronts))
        return sites[-1]

    yield make
    for site in sites:
        for acceptor in site.acceptors:
            acceptor.close()
        for each in (*site.clients, site.listener):
            each.close()
    await eventually(lambda: not any(count for site in sites for count in site.counts))


async def test_a_burst_is_shared_evenly(site_of: SiteOf) -> None:
    """The front that wakes first would else take all of it in one go."""
    site = site_of(3)
    for index in range(3):
        site.open(index)
    site.connect(90)
    await eventually(lambda: sum(site.counts) == 90)
    # One that led stepped back, and took `MAX_BATCH` where the others had been slow.
    assert max(site.counts) - min(site.counts) <= 2 * (module.LEAD + module.MAX_BATCH)


async def test_what_a_stopped_front_does_not_take_the_others_do(site_of: SiteOf) -> None:
    site = site_of(2)
    site.tables[1].enter()  # it is there, has no connections, and never accepts any
    site.open(0)
    site.connect(40)
    await eventually(lambda: site.counts == [40, 0])


async def test_what_waits_when_a_front_ends_is_the_next_one_s(site_of: SiteOf) -> None:
    site = site_of(2)
    site.open(0)
    site.connect(3)
    await eventually(lambda: site.counts == [3, 0])
    site.acceptors.pop().close()
    site.connect(5)
    await asyncio.sleep(0.05)
    assert site.counts == [3, 0]
    site.tables[0].clear(0)
    site.open(1)
    await eventually(lambda: site.counts[1] == 5)


async def test_running_out_of_files_is_survived(
    site_of: SiteOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    site = site_of(1)
    refusals = iter([OSError(errno.EMFILE, os.strerror(errno.EMFILE)), ConnectionAbortedError()])

    class Listener(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            with contextlib.suppress(StopIteration):
                raise next(refusals)
            return super().accept()

    site.tables[0].enter()
    pool, table = site.pools[0], site.tables[0]
    listener = Listener(fileno=os.dup(site.listener.fileno()))
    acceptor = Acceptor(listener, lambda: Protocol(pool), pool, table, None)
    site.acceptors.append(acceptor)
    site.connect(2)
    await eventually(lambda: site.counts == [2])
    assert "was not accepted: Too many open files" in caplog.text
