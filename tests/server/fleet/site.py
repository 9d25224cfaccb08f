"""A server over a fleet in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from msgspec.structs import replace

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
    models: dict[str, str] | None = None,
    seed: int | None = None,
    *,
    adapters: bool = False,
    late: Collection[str] = (),
    **engine: Any,
) -> AsyncIterator[FleetSite]:
    """Start one.

    Args:
        adapters: replicas serve them.
        late: replicas that do not answer at first.
    """
    engines = {name: FakeEngine(**engine) for name in NAMES}
    if adapters:
        for each in engines.values():
            each.info = replace(each.info, adapters=())
            each.keeps_adapters = True
    for each in engines.values():
        each.speculates = True
    replicas = LocalReplicas(dict(engines), models)
    replicas.dead.update(late)
    fleet = await FleetEngine.start(replicas, seed)
    config = ServerConfig(model_names=(MODEL,), enable_lora=adapters)
    app = create_app(fleet, byte_tokenizer(), config, max_tries=3)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield FleetSite(engines, replicas, fleet, app.state.context, client)
    finally:
        app.state.context.close()
        await fleet.close()
