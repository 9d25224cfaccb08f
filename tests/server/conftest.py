"""A server over the fake engine: in process for most tests, on a loopback port for the rest."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from engine.contracts.control import RunWeights
from engine.contracts.weights import AnyWeightCommand
from engine.messages.request import Request
from server.app import create_app
from server.config import ServerConfig
from server.context import Context
from server.http.server import make_server
from tests.fakes import FakeEngine, byte_tokenizer

MODEL = "fake"

settings.register_profile(
    "any machine",
    deadline=None,  # a busy one is no failure
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,  # a failure is of the change under test, and comes again
)
settings.load_profile("any machine")


@dataclass
class Site:
    """A running server and a client of it."""

    engine: FakeEngine
    context: Context
    client: httpx.AsyncClient
    url: str

    async def complete(self, **body: Any) -> dict[str, Any]:
        """A completion that must succeed."""
        reply = await self.client.post("/v1/completions", json={"model": MODEL, **body})
        assert reply.status_code == 200, reply.text
        parsed: dict[str, Any] = reply.json()
        return parsed

    async def refused(self, status: int = 400, **body: Any) -> dict[str, Any]:
        """The error object of a completion that must fail with `status`."""
        reply = await self.client.post("/v1/completions", json={"model": MODEL, **body})
        assert reply.status_code == status, reply.text
        return error_of(reply)

    async def submitted(self, **body: Any) -> Request:
        """The engine request that a completion becomes."""
        await self.complete(**{"prompt": "hello", "max_tokens": 2, **body})
        return self.engine.requests[-1]

    async def stream(self, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream that must succeed."""
        reply = await self.client.post(
            "/v1/completions", json={"model": MODEL, "stream": True, **body}
        )
        assert reply.status_code == 200, reply.text
        return chunks_of(reply.text)

    async def call(
        self, path: str, receive: Callable[..., Any], send: Callable[..., Any]
    ) -> dict[str, Any]:
        """Let the application, which is in process, answer a POST whose messages these are.

        Returns:
            The request's scope, which a connection keeps while it is open.
        """
        transport = self.client._transport
        assert isinstance(transport, httpx.ASGITransport)
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [],
            "query_string": b"",
            "http_version": "1.1",
            "scheme": "http",
            "server": ("t", 1),
            "asgi": {"version": "3.0"},
        }
        await transport.app(scope, receive, send)
        return scope

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value."""
        registry = self.context.metrics.registry
        if name.startswith("tailrace_"):
            labels = {"model_name": MODEL, "engine": "0", **labels}
        return registry.get_sample_value(name, labels) or 0.0


def error_of(reply: httpx.Response) -> dict[str, Any]:
    """The nested error object, checked for its shape."""
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in reply.text
    error: dict[str, Any] = body["error"]
    return error


def weight_commands(site: Site) -> list[AnyWeightCommand]:
    """The commands about weights that the engine got."""
    return [each.weights for each in site.engine.commands if isinstance(each, RunWeights)]


def chunks_of(text: str) -> list[dict[str, Any]]:
    """The JSON of every event; the last must be [DONE]."""
    events = text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def _config(**config: Any) -> ServerConfig:
    return ServerConfig(model_names=(MODEL,), **config)


def nested(levels: int) -> dict[str, Any]:
    """Objects within objects, so many of them."""
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@asynccontextmanager
async def in_process(
    engine: FakeEngine | None = None, *, with_bos: bool = False, **config: Any
) -> AsyncIterator[Site]:
    """No socket: the client calls the application."""
    engine = engine or FakeEngine()
    app = create_app(engine, byte_tokenizer(with_bos=with_bos), _config(**config))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield Site(engine, app.state.context, client, "http://test")
    finally:
        app.state.context.close()
        await engine.close()


@asynccontextmanager
async def on_a_port(
    engine: FakeEngine | None = None,
    *,
    root_path: str = "",
    header_timeout_s: float = 10.0,
    tls: dict[str, str] | None = None,
    **config: Any,
) -> AsyncIterator[Site]:
    """A real uvicorn on a loopback port, in this event loop.

    Args:
        tls: files of a certificate and its key, by uvicorn's names of them.
    """
    engine = engine or FakeEngine()
    app = create_app(engine, byte_tokenizer(), _config(**config))
    listener = socket.create_server(("127.0.0.1", 0))
    context: Context = app.state.context
    server = make_server(
        app,
        context.connections,
        context.fronts,
        header_timeout_s=header_timeout_s,
        root_path=root_path,
        **tls or {},
    )
    serving = asyncio.create_task(server._serve([listener]))
    await eventually(lambda: server.started)
    url = f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=30, verify=False) as client:
            yield Site(engine, app.state.context, client, url)
    finally:
        server.should_exit = True
        await serving
        await engine.close()


SiteMaker = Callable[..., AbstractAsyncContextManager[Site]]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """In process, all defaults."""
    async with in_process() as made:
        yield made


@pytest.fixture
async def steered() -> AsyncIterator[Site]:
    """In process, whose weights may be changed."""
    async with in_process(weight_updates=True, sleep_mode=True) as made:
        yield made


async def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until `condition` holds; a machine of many others may need as long."""
    for _ in range(int(seconds / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came true")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TAILRACE_")]:
        monkeypatch.delenv(name)
