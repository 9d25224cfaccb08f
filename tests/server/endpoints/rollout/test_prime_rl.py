"""The requests of prime-rl's orchestrator, with their fields, in its order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.contracts.adapters import AdapterSource, NamedAdapter
from engine.contracts.control import EngineState, LoadAdapter, Pause, Resume, RunWeights
from engine.contracts.weights import (
    BeginUpdate,
    DescribedSource,
    FinishUpdate,
    InitGroup,
    ReceiveTensors,
)
from tests.server.conftest import Site, error_of, in_process

BROADCASTER: dict[str, Any] = {
    "host": "10.0.0.1",
    "port": 29501,
    "rank_offset": 2,
    "inference_world_size": 4,
    "timeout": 1200,
    "quantize_in_weight_transfer": False,
}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with in_process(weight_updates=True) as site:
        yield site


async def posted(site: Site, path: str, **request: Any) -> None:
    reply = await site.client.post(path, **request)
    reply.raise_for_status()


async def test_an_update(site: Site) -> None:
    assert (await site.client.get("/health")).status_code == 200
    models = (await site.client.get("/v1/models")).json()["data"]
    assert models[0]["id"] == "fake"
    assert (await site.client.get("/liveness")).json() == {"status": "ok"}
    await posted(site, "/init_broadcaster", json=BROADCASTER)
    await posted(site, "/pause", params={"mode": "keep", "clear_cache": "false"})
    await posted(site, "/update_weights", json={"weight_dir": "/weights/step_4"})
    await posted(site, "/resume")
    group, pause, *update, resume = site.engine.commands
    assert group == RunWeights(
        weights=InitGroup(
            name="prime-rl",
            world_size=5,
            rank_offset=3,
            master_address="10.0.0.1",
            master_port=29501,
            timeout_s=250.0,
            forms_as="vllm",
        )
    )
    assert (pause, resume) == (Pause(mode="keep", forgets=False, refuses=False), Resume())
    source = DescribedSource(group="prime-rl", path="/weights/step_4")
    assert [each.weights for each in update if isinstance(each, RunWeights)] == [
        BeginUpdate(),
        ReceiveTensors(source=source),
        FinishUpdate(),
    ]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"inference_world_size": 0}, "inference_world_size"),
        ({"port": 70000}, "port"),
        ({"quantize_in_weight_transfer": True}, "quantize_in_weight_transfer"),
    ],
)
async def test_a_broadcaster_that_cannot_be(site: Site, change: dict[str, Any], param: str) -> None:
    reply = await site.client.post("/init_broadcaster", json=BROADCASTER | change)
    assert (reply.status_code, error_of(reply)["param"]) == (400, param)
    assert not site.engine.commands


async def test_versions_of_an_adapter(tmp_path: Path) -> None:
    """One name, and a folder of its own for each version."""
    async with in_process(weight_updates=True, enable_lora=True) as site:
        site.engine.state = EngineState(adapters=(NamedAdapter("r8", "/step_3", 1, ""),))
        for folder in ("/step_4", "/step_3"):
            body = {"lora_name": "r8", "lora_path": folder}
            await posted(site, "/load_lora_adapter", json=body)
    assert site.engine.commands == [
        LoadAdapter(name="r8", source=AdapterSource("/step_4"), replaces=True),
        LoadAdapter(name="r8", source=AdapterSource("/step_3")),
    ]
