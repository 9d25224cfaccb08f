"""An OpenAI-compatible server without a model, for the client's tests: it counts and paces."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

MODEL = "fake"
Head = tuple[str, str, dict[str, str]]


@dataclass
class FakeServer:
    """What it does and what it saw; the rest of its fields may be changed while it runs.

    Attributes:
        key: the only key it takes, if any.
        token_s: seconds a token takes.
        refuses: status of every completion, where it is not 200.
        breaks: every n-th completion fails in the middle: its connection ends (`drop`), or its
            stream reports an error (`event`).
        hangs: completions are never answered.
        closes: a connection ends after each reply, unannounced.
        has_usage: replies count tokens.
    """

    url: str = ""
    key: str | None = None
    token_s: float = 0.0
    refuses: int = 200
    breaks: tuple[str, int] = ("", 0)
    hangs: bool = False
    closes: bool = False
    has_usage: bool = True
    cached_tokens: int | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    num_connections: int = 0
    most_at_once: int = 0
    paths: Counter[str] = field(default_factory=Counter)
    _now: int = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests."""
        self.num_connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while True:
                    head = _head_of(await reader.readuntil(b"\r\n\r\n"))
                    raw = await reader.readexactly(int(head[2].get("content-length", 0)))
                    self.heads.append(head)
                    self.paths[head[1]] += 1
                    if not await self._answer(head, raw, writer) or self.closes:
                        break
        finally:
            writer.close()

    async def _answer(self, head: Head, raw: bytes, writer: asyncio.StreamWriter) -> bool:
        if self.key is not None and head[2].get("authorization") != f"Bearer {self.key}":
            return _plain(writer, 401, _error("wrong key"))
        if head[0] == "GET":
            return _plain(writer, 200, {"data": [{"id": MODEL}, {"id": "other"}]})
        body = json.loads(raw)
        self.bodies.append(body)
        if self.hangs:
            await asyncio.sleep(3600)
        if self.refuses != 200:
            return _plain(writer, self.refuses, _error("not\n today"))
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            return await self._complete(body, writer, len(self.bodies))
        finally:
            self._now -= 1

    async def _complete(
        self, body: dict[str, Any], writer: asyncio.StreamWriter, number: int
    ) -> bool:
        how, each = self.breaks
        fault = how if each and number % each == 0 else ""
        usage = self._usage(body)
        if not body.get("stream"):
            await asyncio.sleep(self.token_s * body.get("max_tokens", 1))
            if fault == "drop":
                return False
            return _plain(writer, 200, {"choices": [{"text": "x"}], **usage})
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
        writer.write(f"{head}\r\n\r\n".encode())
        for index in range(body["max_tokens"]):
            await asyncio.sleep(self.token_s)
            if fault and index == 1:
                if fault == "drop":
                    return False
                _event(writer, _error("it broke"))
                break
            _event(writer, {"choices": [{"index": 0, "text": '"choices":[] "error"'}]})
            await writer.drain()
        if usage:
            _event(writer, {"choices": [], **usage})
        _event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True

    def _usage(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self.has_usage:
            return {}
        if "items" in body:
            num_in, num_out = sum(map(len, body["items"])) + len(body["query"]), 0
        else:
            num_in, num_out = len(body["prompt"]), body["max_tokens"]
        usage: dict[str, Any] = {"prompt_tokens": num_in, "completion_tokens": num_out}
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return {"usage": usage}


def _head_of(raw: bytes) -> Head:
    line, *headers = raw.decode().split("\r\n")
    method, path, _ = line.split(" ")
    pairs = (header.split(": ", 1) for header in headers if header)
    return method, path, {name.lower(): value for name, value in pairs}


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "x", "param": None, "code": None}}


def _plain(writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> bool:
    raw = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    return True


def _event(writer: asyncio.StreamWriter, data: Any) -> None:
    raw = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    event = f"data: {raw}\n\n"
    writer.write(f"{len(event.encode()):x}\r\n{event}\r\n".encode())


@contextmanager
def fake_server(**fields: Any) -> Iterator[FakeServer]:
    """A server on a free port, in a thread with an event loop of its own."""
    fake = FakeServer(**fields)
    started = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        end = asyncio.Event()
        server = await asyncio.start_server(fake.connected, "127.0.0.1", 0, backlog=1024)
        fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        loops.append((asyncio.get_running_loop(), end))
        started.set()
        await end.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # sockets close a turn later

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(30)
    try:
        yield fake
    finally:
        for loop, end in loops:
            loop.call_soon_threadsafe(end.set)
        thread.join(30)
