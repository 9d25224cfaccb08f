"""A server over a fleet in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from server.app import create_app
from server.config import ServerConfig
from server.context import Context
from server.fleet.engine import FleetEngine
from tests.fakes import FakeEngine, byte_tokenizer
from tests.server.conftest import MODEL
from tests.server.fleet.local import LocalReplicas

NAMES = ("a", "b", "c")


@dataclass
class FleetSite:
    """A server over three replicas."""

    engines: dict[str, FakeEngine]
    replicas: LocalReplicas
    fleet: FleetEngine
    context: Context
    client: httpx.AsyncClient

    async def post(self, path: str = "/v1/completions", **body: Any) -> httpx.Response:
        return await self.client.post(path, json={"model": MODEL, **body})


@asynccontextmanager
async def fleet_site(
    models: dict[str, str] | None = None, seed: int | None = None, **engine: Any
) -> AsyncIterator[FleetSite]:
    engines = {name: FakeEngine(**engine) for name in NAMES}
    for each in engines.values():
        each.speculates = True
    replicas = LocalReplicas(dict(engines), models)
    fleet = await FleetEngine.start(replicas, seed)
    config = ServerConfig(model_names=(MODEL,))
    app = create_app(fleet, byte_tokenizer(), config, max_tries=3)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield FleetSite(engines, replicas, fleet, app.state.context, client)
    finally:
        app.state.context.close()
        await fleet.close()
