"""vLLM's routes of adapters over the fake engine; see `tests/serving/test_adapters.py`."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.contracts.adapters import AdapterSource, NamedAdapter
from engine.contracts.control import EngineState, LoadAdapter, UnloadAdapter
from engine.errors import ControlError
from engine.messages.step_output import Finish
from tests.fakes import FakeEngine
from tests.server.conftest import Site, error_of, in_process

SQL = NamedAdapter("sql", "/adapters/sql", 1, "0123456789abcdef")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with in_process(enable_lora=True) as site:
        site.engine.state = EngineState(adapters=(SQL,))
        yield site


def refused(reply: httpx.Response, status: int) -> dict[str, Any]:
    assert reply.status_code == status
    return error_of(reply)


async def test_there_are_no_routes_without_the_flag() -> None:
    async with in_process() as site:
        for route in ("load", "unload"):
            reply = await site.client.post(f"/v1/{route}_lora_adapter", json={"lora_name": "a"})
            assert reply.status_code == 404


async def test_the_routes_need_the_key() -> None:
    async with in_process(enable_lora=True, api_keys=("k",)) as site:
        for route in ("load", "unload"):
            reply = await site.client.post(f"/v1/{route}_lora_adapter", json={"lora_name": "a"})
            assert reply.status_code == 401


async def test_loading_and_unloading(site: Site) -> None:
    body = {"lora_name": "new", "lora_path": "/adapters/new"}
    reply = await site.client.post("/v1/load_lora_adapter", json=body)
    assert (reply.status_code, reply.text) == (
        200,
        "Success: LoRA adapter 'new' added successfully.",
    )
    again = body | {"load_inplace": True, "base_model_name": "fake"}
    assert (await site.client.post("/v1/load_lora_adapter", json=again)).status_code == 200
    gone = {"lora_name": "new", "lora_int_id": 3}
    reply = await site.client.post("/v1/unload_lora_adapter", json=gone)
    assert reply.text == "Success: LoRA adapter 'new' removed successfully."
    assert site.engine.commands == [
        LoadAdapter(name="new", source=AdapterSource("/adapters/new")),
        LoadAdapter(name="new", source=AdapterSource("/adapters/new"), replaces=True),
        UnloadAdapter(name="new"),
    ]


@pytest.mark.parametrize(
    ("code", "status"), [("adapter_exists", 400), ("adapter_refused", 400), ("no_adapter", 404)]
)
async def test_refusals_of_the_engine(site: Site, code: str, status: int) -> None:
    site.engine.refusal = ControlError("the engine's words", code)
    body = {"lora_name": "new", "lora_path": "/adapters/new"}
    error = refused(await site.client.post("/v1/load_lora_adapter", json=body), status)
    assert (error["message"], error["code"]) == ("the engine's words", code)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"lora_name": "fake"}, "lora_name"),
        ({"lora_name": ""}, "lora_name"),
        ({"lora_path": None}, "lora_path"),
        ({"lora_path": "a\0"}, "lora_path"),
        ({"config_dict": {}}, "tensors"),
        ({"tensors": "AAAA"}, "config_dict"),
        ({"tensors": "", "config_dict": {}}, "tensors"),
        ({"tensors": "no base64", "config_dict": {}}, "tensors"),
        ({"lora_pth": "x"}, "lora_pth"),
    ],
)
async def test_refusals_of_bodies(site: Site, change: dict[str, Any], param: str) -> None:
    body = {"lora_name": "new", "lora_path": "/x"} | change
    error = refused(await site.client.post("/v1/load_lora_adapter", json=body), 400)
    assert error["param"] == param
    assert not site.engine.commands


async def test_loading_tensors_of_the_body(site: Site) -> None:
    body = {
        "lora_name": "new",
        "tensors": base64.b64encode(b"safetensors").decode(),
        "config_dict": {"r": 4},
        "load_inplace": True,
        "is_3d_lora_weight": True,
    }
    reply = await site.client.post("/v1/load_lora_adapter", json=body)
    assert reply.status_code == 200
    source = AdapterSource("tensors of new", b'{"r":4}', tensors=b"safetensors")
    assert site.engine.commands == [LoadAdapter(name="new", source=source, replaces=True)]


async def test_routes_of_sglang(site: Site) -> None:
    loaded = {"sql": "/adapters/sql"}
    done = {"success": True, "error_message": None, "loaded_adapters": loaded}
    folder = {"lora_name": "new", "lora_path": "/adapters/new", "pinned": True}
    handles = base64.b64encode(b"pickle").decode()
    given = {"lora_name": "new", "config_dict": {"r": 4}, "serialized_named_tensors": [handles] * 2}
    older = {"lora_name": "new", "config_dict": {"r": 4}, "serialized_tensors": handles}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("load_lora_adapter", folder),
        ("load_lora_adapter_from_tensors", given),
        ("load_lora_adapter_from_tensors", older),
        ("unload_lora_adapter", {"lora_name": "new"}),
    ]
    for route, body in asked:
        reply = await site.client.post(f"/{route}", json=body)
        assert (reply.status_code, reply.json()) == (200, done)
    source = AdapterSource("tensors of new", b'{"r":4}', handles=b"pickle")
    assert site.engine.commands == [
        LoadAdapter(name="new", source=AdapterSource("/adapters/new")),
        LoadAdapter(name="new", source=source),
        LoadAdapter(name="new", source=source),
        UnloadAdapter(name="new"),
    ]
    both = given | older
    refused(await site.client.post("/load_lora_adapter_from_tensors", json=both), 400)
    site.engine.refusal = ControlError("the engine's words", "adapter_exists")
    reply = await site.client.post("/load_lora_adapter", json=folder)
    failed = done | {"success": False, "error_message": "the engine's words"}
    assert (reply.status_code, reply.json()) == (400, failed)


async def test_a_path_outside_the_root(tmp_path: Path) -> None:
    async with in_process(enable_lora=True, lora_root=str(tmp_path)) as site:
        body = {"lora_name": "new", "lora_path": "/etc"}
        error = refused(await site.client.post("/v1/load_lora_adapter", json=body), 400)
        assert f"--lora-root ({tmp_path})" in error["message"]


async def test_adapters_are_models_with_a_parent(site: Site) -> None:
    cards = (await site.client.get("/v1/models")).json()["data"]
    base, own = ((card["id"], card["root"], card["parent"]) for card in cards)
    assert (base[0], base[2]) == ("fake", None)
    assert own == ("sql", "/adapters/sql", "fake")
    assert (await site.client.get("/v1/models/sql")).json()["parent"] == "fake"


async def test_requests_name_an_adapter(site: Site) -> None:
    for name, wanted in (("sql", "sql"), ("fake", "")):
        body = {"model": name, "prompt": [5, 6], "max_tokens": 1}
        reply = (await site.client.post("/v1/completions", json=body)).json()
        assert reply["model"] == name
        assert site.engine.requests[-1].adapter == wanted
        assert reply["system_fingerprint"].endswith("-01234567") == bool(wanted)
    refused(await site.client.post("/v1/completions", json={"model": "no", "prompt": [5]}), 404)


async def test_an_adapter_that_went_meanwhile_is_a_404() -> None:
    engine = FakeEngine(lambda request, choice, position: Finish.ADAPTER)
    engine.state = EngineState(adapters=(SQL,))
    async with in_process(engine, enable_lora=True) as site:
        body = {"model": "sql", "prompt": [5, 6], "max_tokens": 1}
        error = refused(await site.client.post("/v1/completions", json=body), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        engine.scoring_finish = Finish.ADAPTER
        scored = {"model": "sql", "query": "a", "items": ["b"], "label_token_ids": [5]}
        refused(await site.client.post("/generative_scoring", json=scored), 404)
        assert engine.scored[0].adapter == "sql"
