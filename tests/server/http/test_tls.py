"""The server over TLS."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.http.connections import ConnectionPool
from server.http.tls import Handshakes
from tests.server.certificates import make_certificate
from tests.server.conftest import eventually, on_a_port

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A certificate that signs itself."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def test_requests_are_answered(certificate: dict[str, str]) -> None:
    async with on_a_port(tls=certificate) as site:
        assert site.url.startswith("https:")
        reply = await site.complete(prompt="abc", max_tokens=3)
        assert reply["choices"][0]["text"] == "abc"


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_handshake_has_as_long_as_headers_have(
    sent: bytes, certificate: dict[str, str]
) -> None:
    """Of no byte, or of the beginning of a first message; asyncio would wait for 60 s."""
    async with on_a_port(tls=certificate, header_timeout_s=0.3) as site:
        port = int(site.url.rpartition(":")[2])
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(30):
            assert await reader.read() == b""
        assert time.perf_counter() - began > 0.25
        writer.close()


async def test_headers_have_their_time_after_the_handshake(certificate: dict[str, str]) -> None:
    context = ssl.create_default_context(cafile=certificate["ssl_certfile"])
    async with on_a_port(tls=certificate, header_timeout_s=0.3) as site:
        port = int(site.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        writer.write(b"GET /version HTTP/1.1\r\n")
        async with asyncio.timeout(30):
            assert (await reader.read()).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_handshakes_count_and_make_room(certificate: dict[str, str]) -> None:
    """Of clients who say nothing, the one that came first goes first, and others are answered."""
    async with on_a_port(tls=certificate, header_timeout_s=30, max_connections=5) as site:
        port = int(site.url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        assert (await site.client.get("/version")).status_code == 200
        await eventually(lambda: site.context.connections.num_open == 5, 30)
        assert site.metric("tailrace_connections_over_limit_total") == 16
        async with asyncio.timeout(30):
            assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.close()
        await eventually(lambda: site.context.connections.num_open == 1, 30)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"GET /version HTTP/1.1\r\n\r\n"])
async def test_a_handshake_that_fails_counts_no_longer(
    sent: bytes, certificate: dict[str, str]
) -> None:
    async with on_a_port(tls=certificate, header_timeout_s=30) as site:
        port = int(site.url.rpartition(":")[2])
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writer.write_eof()
            async with asyncio.timeout(30):
                await reader.read()
            writer.close()
        await eventually(lambda: site.context.connections.num_open == 0, 30)
        assert (await site.client.get("/version")).status_code == 200


async def test_a_request_may_come_with_the_end_of_the_handshake(
    certificate: dict[str, str],
) -> None:
    """The client's last message of TLS 1.3 and its request are one segment."""
    context = ssl.create_default_context(cafile=certificate["ssl_certfile"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    async with on_a_port(tls=certificate) as site, asyncio.timeout(30):
        port = int(site.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        client.write(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        writer.write(outgoing.read())
        reply = b""
        while b"}" not in reply:
            incoming.write(await reader.read(65536))
            try:
                while True:
                    reply += client.read(65536)
            except ssl.SSLWantReadError:
                pass
        assert reply.startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_handshake_that_ends_before_it_began_leaves_no_connection(
    certificate: dict[str, str],
) -> None:
    """Both connections are closed: that of a server that ends, and that of a full pool."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate["ssl_certfile"], certificate["ssl_keyfile"])
    counted: list[object] = []
    pool = SimpleNamespace(opened=counted.append, closed=counted.remove)
    protocols = [SimpleNamespace(handshake=None) for _ in range(2)]
    made = iter(protocols)
    handshakes = Handshakes(
        cast(Any, lambda: next(made)), context, 30.0, cast(ConnectionPool, pool)
    )
    pairs = [socket.socketpair() for _ in protocols]
    for own, _ in pairs:
        own.setblocking(False)
        handshakes.begin(own)
    assert len(counted) == 2
    cast(Any, protocols[0].handshake).abort()
    handshakes.close()
    await handshakes.wait_closed()
    await eventually(lambda: not counted)
    assert [own.fileno() for own, _ in pairs] == [-1, -1]
    for _, other in pairs:
        other.close()
