"""A replica whose engine is lost ends, so that its requests are done elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from server.fleet import replica
from server.fleet.replica import Replica
from tests.fakes import FakeEngine
from tests.server.conftest import eventually
from tests.server.fleet.site import fleet_site


async def test_a_replica_ends_with_its_engine() -> None:
    """One that stayed would have the shortest queue, and fail whatever comes to it at once."""
    async with fleet_site(step_s=0.01) as site:
        posts = [
            asyncio.create_task(site.post(prompt=f"{i} hello", max_tokens=40)) for i in range(12)
        ]
        await eventually(lambda: len(site.replicas.sent) == 12)
        await asyncio.sleep(0.05)
        site.engines["a"].die("CUDA error")
        replies = await asyncio.gather(*posts)
        assert [reply.status_code for reply in replies] == [200] * 12
        site.replicas.dead.clear()  # its end has not been noticed yet
        for i in range(12):
            assert (await site.post(prompt=f"more {i}")).status_code == 200
        assert site.replicas.dead == {"a"}


async def test_an_idle_replica_ends_with_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "WATCH_S", 0.01)
    engine, reasons = FakeEngine(), list[str]()

    async def end(reason: str) -> None:
        reasons.append(reason)

    watching = asyncio.create_task(Replica(engine, "a", "m", "m", end).watch())
    await asyncio.sleep(0.05)
    assert not reasons
    engine.die("silent for 10 s")
    await asyncio.wait_for(watching, 10.0)
    assert reasons == ["silent for 10 s"]
