"""Connections that say too much, too little or something odd before a body."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import ClassVar

import pytest

from server.http.protocol import MAX_HEADER_BYTES
from tests.server.conftest import Site, eventually, on_a_port
from tests.server.slowness import slowness

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n"
BODY = b'{"prompt": "abc", "max_tokens": 3}'
GET = b"GET /version HTTP/1.1\r\nHost: t\r\n\r\n"


class Raw:
    """A connection on which a test writes bytes of its own."""

    opened: ClassVar[list[Raw]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, site: Site) -> Raw:
        port = int(site.url.rpartition(":")[2])
        cls.opened.append(cls(*await asyncio.open_connection("127.0.0.1", port)))
        return cls.opened[-1]

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def reply(self) -> tuple[int, dict[str, object]]:
        """The status and the JSON of the next reply."""
        async with asyncio.timeout(30):
            head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return int(head.split()[1]), json.loads(await self.reader.readexactly(length))

    async def ended(self, seconds: float = 30.0) -> bool:
        """Whether the server ends the connection in time, with nothing more to say."""
        try:
            async with asyncio.timeout(seconds):
                return await self.reader.read() == b""
        except (TimeoutError, ConnectionResetError) as error:
            return isinstance(error, ConnectionResetError)


@pytest.fixture(autouse=True)
async def _closed() -> AsyncIterator[None]:
    yield
    while Raw.opened:
        raw = Raw.opened.pop()
        raw.writer.close()
        with suppress(ConnectionError):
            await raw.writer.wait_closed()


async def flood(site: Site, start: bytes, piece: bytes, num_bytes: int) -> float:
    """Send an endless head until the server ends it; the longest wait of a neighbour meanwhile.

    It is measured in processor time of this process: what others take of the machine is not ours.
    """
    raw = await Raw.open(site)
    longest = 0.0

    async def neighbour() -> None:
        nonlocal longest
        while True:
            began = time.process_time()
            await site.client.get("/health")
            longest = max(longest, time.process_time() - began)

    task = asyncio.create_task(neighbour())
    try:
        await raw.send(start)
        sent = 0
        while sent < num_bytes and not raw.reader.at_eof():
            await raw.send(piece)
            sent += len(piece)
        status, reply = await raw.reply()
        assert status == 431
        assert f"at most {MAX_HEADER_BYTES} bytes" in str(reply["error"])
        assert await raw.ended()
        return longest
    except ConnectionResetError:
        return longest
    finally:
        task.cancel()


class TestSize:
    @pytest.mark.parametrize(
        ("start", "piece"),
        [
            (HEAD + b"X: ", b"x" * 65536),
            (HEAD, b"a:b\r\n" * 13107),
            (b"GET /", b"x" * 65536),
            (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX: ", b"x" * 65536),
        ],
        ids=["one header", "tiny headers", "the path", "trailers"],
    )
    async def test_an_endless_head_is_refused(self, start: bytes, piece: bytes) -> None:
        """16 MB; what uvicorn does with 70 MB holds the loop for 5 s."""
        async with on_a_port() as site:
            assert await flood(site, start, piece, 16 << 20) < 0.5 * slowness()
            await eventually(lambda: site.context.connections.num_open <= 2)

    async def test_a_head_in_one_piece_is_bounded_too(self) -> None:
        async with on_a_port() as site:
            raw = await Raw.open(site)
            await raw.send(b"GET /version HTTP/1.1\r\nX: " + b"x" * MAX_HEADER_BYTES + b"\r\n\r\n")
            assert (await raw.reply())[0] == 431
            assert await raw.ended()

    async def test_a_large_head_is_served(self) -> None:
        async with on_a_port() as site:
            raw = await Raw.open(site)
            await raw.send(b"GET /version HTTP/1.1\r\nHost: t\r\nX: " + b"x" * 60_000)
            await raw.send(b"\r\n\r\n")
            assert (await raw.reply())[0] == 200

    async def test_bodies_do_not_count(self) -> None:
        """In pieces, chunked or not, and a request after them in the same piece."""
        async with on_a_port() as site:
            raw = await Raw.open(site)
            body = BODY[:-1] + b" " * 300_000 + b"}"
            await raw.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body))
            for at in range(0, len(body), 50_000):
                await raw.send(body[at : at + 50_000])
            assert (await raw.reply())[0] == 200
            chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
            await raw.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
            await raw.send(b"0\r\n\r\n" + GET)
            assert (await raw.reply())[0] == 200
            assert (await raw.reply())[0] == 200


class TestTime:
    @pytest.mark.parametrize("sent", [b"", b"\r\n"])
    async def test_an_idle_connection_is_closed(self, sent: bytes) -> None:
        async with on_a_port(header_timeout_s=0.1) as site:
            raw = await Raw.open(site)
            await raw.send(sent)
            assert await raw.ended(2)

    async def test_half_a_head_is_a_408(self) -> None:
        async with on_a_port(header_timeout_s=0.1) as site:
            raw = await Raw.open(site)
            await raw.send(HEAD)
            status, reply = await raw.reply()
            assert status == 408
            assert "0.1 s (--header-timeout)" in str(reply["error"])
            assert await raw.ended()

    async def test_a_head_by_drops_is_a_408(self) -> None:
        async with on_a_port(header_timeout_s=1.0) as site:
            raw = await Raw.open(site)
            await raw.send(GET)
            assert (await raw.reply())[0] == 200
            for byte in HEAD + b"X: " + b"x" * 500:  # takes five times the limit
                await raw.send(bytes([byte]))
                await asyncio.sleep(0.01)
                if raw.reader._buffer:  # type: ignore[attr-defined]
                    break
            else:
                raise AssertionError("each drop was given the whole time anew")
            assert (await raw.reply())[0] == 408

    async def test_slow_answers_and_idle_clients_are_waited_for(self) -> None:
        async with on_a_port(header_timeout_s=1.0) as site:
            raw = await Raw.open(site)
            await raw.send(GET)
            assert (await raw.reply())[0] == 200
            await asyncio.sleep(1.2)  # between two requests the keep-alive time counts
            await raw.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY))
            await asyncio.sleep(1.2)
            await raw.send(BODY)
            assert (await raw.reply())[0] == 200

    async def test_a_body_that_never_comes_is_a_408(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("server.http.body.SILENCE_S", 0.1)
        async with on_a_port() as site:
            raw = await Raw.open(site)
            await raw.send(HEAD + b"Content-Length: 9\r\n\r\n{")
            assert (await raw.reply())[0] == 408
            assert await raw.ended()

    async def test_a_large_body_must_come_at_a_rate(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of 2 MiB half comes at once: at 4 MiB a second the rest has half a second more."""
        monkeypatch.setattr("server.http.body.GRACE_S", 0.0)
        monkeypatch.setattr("server.http.body.LEAST_RATE", 4 << 20)
        async with on_a_port() as site, asyncio.timeout(20):
            raw = await Raw.open(site)
            began = time.monotonic()
            await raw.send(HEAD + b"Content-Length: %d\r\n\r\n" % (2 << 20))
            await raw.send(b" " * (1 << 20))
            status, reply = await raw.reply()
            assert status == 408
            assert "4096 KiB a second" in str(reply)
            assert time.monotonic() - began >= 0.5

    async def test_a_large_body_of_no_known_length_has_the_time_of_the_largest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At 4 MiB a second the 2 MiB that a body may have take half a second."""
        monkeypatch.setattr("server.http.body.GRACE_S", 0.0)
        monkeypatch.setattr("server.http.body.LEAST_RATE", 4 << 20)
        async with on_a_port(max_body_bytes=2 << 20) as site, asyncio.timeout(20):
            raw = await Raw.open(site)
            began = time.monotonic()
            await raw.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            await raw.send(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
            assert (await raw.reply())[0] == 408
            assert time.monotonic() - began >= 0.5

    async def test_a_refused_client_is_read_for_its_own_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The clock of its headers is over: another connection, opened later, runs into it."""
        monkeypatch.setattr("server.http.protocol.LINGER_S", 60.0)
        async with on_a_port(header_timeout_s=1.0) as site:
            raw = await Raw.open(site)
            await raw.send(b"nonsense\r\n\r\n")
            assert (await raw.reply())[0] == 400
            assert await (await Raw.open(site)).ended()
            assert site.context.connections.num_open == 1
            raw.writer.close()


class TestUpgrade:
    @pytest.mark.parametrize("offer", [b"h2c", b"websocket"])
    @pytest.mark.parametrize("cut", [0, 150])
    async def test_is_ignored(self, offer: bytes, cut: int) -> None:
        """Java's HttpClient offers HTTP/2 with every first request."""
        head = HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\n" % offer
        request = head + b"HTTP2-Settings: AAE\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
        async with on_a_port() as site:
            raw = await Raw.open(site)
            for _ in range(2):  # the connection stays of use
                await raw.send(request[:cut])
                await asyncio.sleep(0.02)
                await raw.send(request[cut:])
                status, reply = await raw.reply()
                assert status == 200
                assert reply["choices"][0]["text"] == "abc"  # type: ignore[index]

    async def test_close_is_heeded(self) -> None:
        async with on_a_port() as site:
            raw = await Raw.open(site)
            await raw.send(GET[:-2] + b"Connection: upgrade, close\r\nUpgrade: h2c\r\n\r\n")
            assert (await raw.reply())[0] == 200
            assert await raw.ended()


class TestMalformed:
    @pytest.mark.parametrize(
        "sent",
        [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nA b: c\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n\r\n"],
    )
    async def test_is_an_error_object(self, sent: bytes) -> None:
        async with on_a_port() as site:
            raw = await Raw.open(site)
            await raw.send(sent)
            status, reply = await raw.reply()
            assert status in (400, 405)
            assert set(reply["error"]) == {"message", "type", "param", "code"}  # type: ignore[call-overload]
            assert await raw.ended()

    async def test_behind_a_good_request_leaves_its_reply_whole(self) -> None:
        async with on_a_port() as site:
            raw = await Raw.open(site)
            head = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY)
            await raw.send(head + BODY + b"nonsense\r\n\r\n")
            status, reply = await raw.reply()
            assert (status, reply["object"]) == (200, "text_completion")
            assert await raw.ended()


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"GET /version\r\n\r\n", "a version"),
        (b"GET /version\r\nHost: t\r\n\r\n", "a version"),
        (b"GET /version HTTP/1.1\r\nAccept: */*\r\n\r\n", "a Host header"),
    ],
)
async def test_a_head_without_its_version_or_host(head: bytes, words: str) -> None:
    async with on_a_port() as site:
        raw = await Raw.open(site)
        await raw.send(head)
        status, reply = await raw.reply()
        assert status == 400
        assert words in str(reply["error"])
        assert await raw.ended()


async def test_http_1_0_needs_no_host() -> None:
    async with on_a_port() as site:
        raw = await Raw.open(site)
        await raw.send(b"GET /version HTTP/1.0\r\n\r\n")
        assert (await raw.reply())[0] == 200
