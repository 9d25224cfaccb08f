"""Adapters of a fleet: all replicas have them, those that start later too."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest

from engine.contracts.adapters import AdapterSource
from engine.contracts.control import LoadAdapter, UnloadAdapter
from engine.errors import ControlError
from server.fleet import adapters as fleet_adapters
from server.fleet import engine as fleet_engine
from server.fleet.adapters import HeldAdapters
from server.fleet.engine import FleetEngine
from server.fleet.messages import AdapterChange
from tests.fakes import FakeEngine
from tests.server.conftest import MODEL, eventually
from tests.server.fleet.site import NAMES, FleetSite, fleet_site

SQL = {"lora_name": "sql", "lora_path": "/adapters/sql"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_engine, "REPORT_S", 0.02)


async def change(site: FleetSite, route: str, **body: Any) -> httpx.Response:
    return await site.client.post(f"/v1/{route}_lora_adapter", json=body)


async def listed(site: FleetSite) -> list[str]:
    models = (await site.client.get("/v1/models")).json()["data"]
    return [each["id"] for each in models if each["parent"] == MODEL]


def held(site: FleetSite, replica: str) -> dict[str, str]:
    """Names and folders of a replica's adapters."""
    return {each.name: each.path for each in site.engines[replica].state.adapters}


def everywhere(site: FleetSite, adapters: dict[str, str]) -> bool:
    """Whether these are the adapters of all replicas."""
    return all(held(site, replica) == adapters for replica in NAMES)


async def test_loads_and_unloads_reach_every_replica() -> None:
    async with fleet_site(adapters=True) as site:
        assert (await change(site, "load", **SQL)).status_code == 200
        assert await listed(site) == ["sql"]
        assert everywhere(site, {"sql": "/adapters/sql"})
        again = await change(site, "load", **SQL)
        assert (again.status_code, again.json()["error"]["code"]) == (400, "adapter_exists")
        newer = SQL | {"lora_path": "/adapters/newer", "load_inplace": True}
        assert (await change(site, "load", **newer)).status_code == 200
        assert everywhere(site, {"sql": "/adapters/newer"})
        assert (await change(site, "unload", lora_name="sql")).status_code == 200
        assert everywhere(site, {})
        assert await listed(site) == []
        gone = await change(site, "unload", lora_name="sql")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "no_adapter")


async def test_requests_name_an_adapter_and_go_where_it_is_in_use() -> None:
    async with fleet_site(adapters=True) as site:
        for name in ("sql", "chat"):
            await change(site, "load", lora_name=name, lora_path=f"/adapters/{name}")
        for i in range(4):
            for name in ("sql", "chat"):
                reply = await site.post(model=name, prompt=f"{i}", max_tokens=1)
                assert reply.status_code == 200, reply.text
        sent = site.replicas.sent
        assert len(set(sent[::2])) == len(set(sent[1::2])) == 1
        asked = site.engines[sent[0]].requests
        assert [each.adapter for each in asked if each.adapter == "sql"] == ["sql"] * 4


async def test_a_refusal_of_one_replica_leaves_all_as_they_were() -> None:
    async with fleet_site(adapters=True) as site:
        await change(site, "load", **SQL)
        site.engines["b"].refusal = ControlError(
            "/adapters/newer: no such folder", "adapter_refused"
        )
        newer = SQL | {"lora_path": "/adapters/newer", "load_inplace": True}
        reply = await change(site, "load", **newer)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"] == "replica b: /adapters/newer: no such folder"
        assert everywhere(site, {"sql": "/adapters/sql"})
        reply = await change(site, "load", lora_name="new", lora_path="/adapters/new")
        assert reply.status_code == 400
        assert everywhere(site, {"sql": "/adapters/sql"})
        assert await listed(site) == ["sql"]


async def test_a_later_change_holds_though_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where it was asked of another server, whose clock is behind."""
    async with fleet_site(adapters=True) as site:
        await change(site, "load", **SQL)
        monkeypatch.setattr("server.fleet.adapters.time.time_ns", lambda: 1)
        newer = SQL | {"lora_path": "/adapters/newer", "load_inplace": True}
        assert (await change(site, "load", **newer)).status_code == 200
        assert everywhere(site, {"sql": "/adapters/newer"})
        assert (await change(site, "unload", lora_name="sql")).status_code == 200
        assert everywhere(site, {})


@pytest.mark.parametrize("is_given", [False, True])
async def test_a_replica_that_starts_later_gets_what_is_loaded(is_given: bool) -> None:
    """Also from a server that was never asked to load it."""
    async with fleet_site(adapters=True, late=["c"]) as site:
        body: dict[str, Any] = dict(SQL)
        if is_given:
            tensors = base64.b64encode(b"tensors").decode()
            body |= {"tensors": tensors, "config_dict": {"r": 8}}
        await change(site, "load", **body)
        await change(site, "load", lora_name="gone", lora_path="/adapters/gone")
        await change(site, "unload", lora_name="gone")
        await site.fleet.close()
        other = await FleetEngine.start(site.replicas)
        assert [each.name for each in other.state.adapters] == ["sql"]
        assert other.state.adapters == site.fleet.state.adapters
        site.replicas.dead.clear()
        await eventually(lambda: held(site, "c") == {"sql": "/adapters/sql"})
        source = AdapterSource("/adapters/sql")
        if is_given:
            source = AdapterSource("/adapters/sql", b'{"r":8}', tensors=b"tensors")
        load = LoadAdapter(name="sql", source=source, replaces=True)
        assert site.engines["c"].commands == [load]
        await other.close()


async def test_a_request_waits_at_a_replica_that_gets_its_adapter_only_now() -> None:
    engine = FakeEngine()
    engine.keeps_adapters = True
    adapters = HeldAdapters(engine, "a")
    waiting = asyncio.create_task(adapters.reach("sql", (5, "s")))
    older = AdapterChange(name="sql", stamp=(4, "s"), source=AdapterSource("/older"))
    newer = AdapterChange(name="sql", stamp=(5, "s"), source=AdapterSource("/newer"))
    await adapters.follow(older)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await adapters.follow(newer)
    assert await waiting
    await adapters.follow(older)
    assert [each.path for each in engine.state.adapters] == ["/newer"], "the later change holds"


async def test_a_replica_without_the_adapter_refuses_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it has refused the adapter at once, else after a while; another one may do it."""
    engine = FakeEngine()
    engine.keeps_adapters = True
    adapters = HeldAdapters(engine, "a")
    engine.refusal = ControlError("no such folder", "adapter_refused")
    asked = AdapterChange(name="sql", stamp=(5, "s"), source=AdapterSource("/sql"))
    assert (await adapters.follow(asked)).error == "no such folder"
    assert (await adapters.follow(asked)).error == "no such folder"
    assert len(engine.commands) == 1, "what was refused is not tried again"
    assert not await adapters.reach("sql", (5, "s"))
    monkeypatch.setattr(fleet_adapters, "REACH_S", 0.01)
    assert not await adapters.reach("chat", (5, "s"))


async def test_what_one_machine_alone_can_open_is_refused() -> None:
    async with fleet_site(adapters=True) as site:
        body = {"lora_name": "a", "config_dict": {}, "serialized_tensors": "aGFuZGxl"}
        reply = await site.client.post("/load_lora_adapter_from_tensors", json=body)
        assert reply.status_code == 400
        assert "another process" in reply.json()["error_message"]


async def test_a_fleet_without_adapters_takes_no_commands() -> None:
    async with fleet_site() as site:
        with pytest.raises(ControlError, match="a fleet takes no commands"):
            await site.fleet.control(UnloadAdapter(name="sql"))


async def test_that_an_adapter_was_unloaded_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer may take a new name for each of a million steps."""
    async with fleet_site(adapters=True) as site:
        await change(site, "load", **SQL)
        await change(site, "unload", lora_name="sql")
        (report, *_) = await site.replicas.reports()
        assert [each.source for each in report.changes] == [None]
        monkeypatch.setattr(fleet_adapters, "FORGET_S", 0.0)
        (report, *_) = await site.replicas.reports()
        assert report.changes == ()
