"""vLLM's routes that change weights, over the fake engine."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from engine.contracts.control import EngineState, RunWeights
from engine.contracts.weights import (
    AbandonUpdate,
    BeginUpdate,
    DescribedSource,
    DrafterFate,
    EndGroup,
    FinishUpdate,
    FolderSource,
    GivenSource,
    GroupSource,
    InitGroup,
    IpcSource,
    ListWeights,
    ReceiveTensors,
    SetVersion,
    TensorBytes,
    UpdateReport,
    WeightEntry,
    WeightList,
    WeightUpdateError,
)
from tests.server.conftest import Site, error_of, weight_commands

WEIGHTS = WeightList(
    weights=(
        WeightEntry(name="a", shape=(2, 3), dtype="bfloat16", checksum="1"),
        WeightEntry(name="b", shape=(), dtype="float32", checksum="2"),
    )
)


async def posted(site: Site, path: str, body: Any = None, status: int = 200) -> Any:
    reply = await site.client.post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


async def test_the_course_of_trl_s_client(steered: Site) -> None:
    """Its bodies, in its order."""
    init = {
        "master_address": "10.0.0.1",
        "master_port": 51216,
        "rank_offset": 1,
        "world_size": 2,
        "packed": True,
    }
    info = {"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]]}
    await posted(steered, "/init_weight_transfer_engine", {"init_info": init})
    assert "message" in await posted(steered, "/start_weight_update", {})
    assert "message" in await posted(steered, "/update_weights", {"update_info": info})
    assert "message" in await posted(steered, "/finish_weight_update", {})
    assert await posted(steered, "/reset_prefix_cache") == {"success": True}
    group, *others = weight_commands(steered)
    assert group == InitGroup(
        name="vllm",
        world_size=2,
        rank_offset=1,
        master_address="10.0.0.1",
        master_port=51216,
        packed=True,
        forms_as="vllm",
    )
    source = GroupSource(group="vllm", names=("a",), dtypes=("bfloat16",), shapes=((2, 3),))
    assert others == [BeginUpdate(), ReceiveTensors(source=source), FinishUpdate()]


async def test_other_sources(steered: Site) -> None:
    raw = base64.b64encode(b"12345678").decode()
    tensor = {"name": "a", "dtype": "float32", "shape": [2], "data": raw}
    for info in (
        {"path": "/folder"},
        {"tensors": [tensor]},
        {"ipc_handles_pickled": raw, "names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2]]},
    ):
        await posted(steered, "/update_weights", {"update_info": info})
    folder, given, handles = (each.source for each in weight_commands(steered))  # type: ignore[union-attr]
    assert folder == FolderSource(path="/folder")
    assert given == GivenSource(tensors=(TensorBytes("a", "float32", (2,), b"12345678"),))
    assert handles == IpcSource(
        handles=(b"12345678",), names=("a",), dtypes=("bfloat16",), shapes=((2,),)
    )


@pytest.mark.parametrize("drafter", ["keep", "off"])
async def test_a_folder_is_an_update_of_its_own(steered: Site, drafter: DrafterFate) -> None:
    body = {"weight_dir": "/folder", "weight_version": "3"}
    await posted(
        steered, "/update_weights", body if drafter == "keep" else body | {"drafter": "off"}
    )
    source = DescribedSource(group="prime-rl", path="/folder")
    assert weight_commands(steered) == [
        BeginUpdate(),
        ReceiveTensors(source=source),
        FinishUpdate(version="3", drafter=drafter),
    ]


async def test_versions(steered: Site) -> None:
    body = {"update_info": {"path": "/folder"}, "weight_version": "2"}
    await posted(steered, "/update_weights", body)
    await posted(steered, "/finish_weight_update", {"weight_version": "3", "drafter": "off"})
    await posted(steered, "/start_draft_weight_update", {"check": True})
    reply = await posted(steered, "/update_weight_version", {"new_version": "4"})
    assert (reply["success"], reply["new_version"]) == (True, "4")
    assert weight_commands(steered) == [
        ReceiveTensors(source=FolderSource(path="/folder"), version="2"),
        FinishUpdate(version="3", drafter="off"),
        BeginUpdate(target="draft", check=True),
        SetVersion(version="4"),
    ]
    report = UpdateReport(num_tensors=3, num_weights=5, num_bytes=6000, seconds=0.5)
    state = EngineState(weight_version="4", num_updates=2, drafter="stale", last_update=report)
    steered.engine.state = state
    info = (await steered.client.get("/weight_info")).json()
    last = {"num_tensors": 3, "num_bytes": 6000, "seconds": 0.5}
    wanted = {"weight_version": "4", "num_updates": 2, "last_update": last, "drafter": "stale"}
    assert info == wanted


async def test_checksums(steered: Site) -> None:
    steered.engine.weights_reply = WEIGHTS
    found = await posted(steered, "/weight_checker", {"action": "checksum"})
    assert found == {"checksums": {"a": "1", "b": "2"}}
    body = {"action": "compare", "baseline": {"a": "1", "b": "3", "c": "4"}}
    assert await posted(steered, "/weight_checker", body) == {
        "match": False,
        "mismatches": ["b", "c"],
    }
    assert weight_commands(steered) == [ListWeights(checksums=True)] * 2
    refused = await steered.client.post("/weight_checker", json={"action": "compare"})
    assert error_of(refused)["param"] == "baseline"


async def test_the_list(steered: Site) -> None:
    steered.engine.weights_reply = WEIGHTS
    found = (await steered.client.get("/weights?checksums=true&target=draft")).json()
    assert found["weights"][0] == {
        "name": "a",
        "shape": [2, 3],
        "dtype": "bfloat16",
        "checksum": "1",
    }
    assert weight_commands(steered) == [ListWeights(checksums=True, target="draft")]


async def test_a_refusal_names_its_reason(steered: Site) -> None:
    steered.engine.refusal = WeightUpdateError("no weight is named 'x'", "unknown_weight")
    reply = await steered.client.post("/start_weight_update")
    assert (reply.status_code, error_of(reply)["code"]) == (400, "unknown_weight")
    steered.engine.refusal = WeightUpdateError("no update was begun", "no_update")
    reply = await steered.client.post("/finish_weight_update", json={})
    assert (reply.status_code, error_of(reply)["code"]) == (409, "no_update")
    steered.engine.refusal = None
    await posted(steered, "/shutdown_weight_transfer_engine")
    assert weight_commands(steered)[-1] == EndGroup(name="vllm")


async def test_an_update_that_fails_midway_is_abandoned(
    steered: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = steered.engine.control

    async def fails_to_receive(command: Any) -> Any:
        reply = await control(command)
        if isinstance(command, RunWeights) and isinstance(command.weights, ReceiveTensors):
            raise WeightUpdateError("no such folder", "bad_source")
        return reply

    monkeypatch.setattr(steered.engine, "control", fails_to_receive)
    reply = await steered.client.post("/update_weights", json={"weight_dir": "/none"})
    assert (reply.status_code, error_of(reply)["code"]) == (400, "bad_source")
    assert weight_commands(steered)[-1] == AbandonUpdate()


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/update_weights", {}, "one of update_info and weight_dir"),
        (
            "/update_weights",
            {"weight_dir": "/folder", "update_info": {"path": "/other"}},
            "one of update_info and weight_dir",
        ),
        ("/update_weights", {"update_info": {}}, "names no tensors"),
        ("/update_weights", {"update_info": {"names": ["a"]}}, "as many dtype_names as names"),
        (
            "/update_weights",
            {"update_info": {"path": "x", "ipc_handles_pickled": "AAAA"}},
            "one of path, tensors and ipc_handles_pickled",
        ),
        (
            "/update_weights",
            {"update_info": {"ipc_handles_pickled": "?"}},
            "is not base64",
        ),
        (
            "/init_weight_transfer_engine",
            {"init_info": {"world_size": 2}},
            "needs master_address and master_port",
        ),
        ("/init_weight_transfer_engine", {"init_info": {"world_size": 1}}, "world_size"),
        ("/start_weight_update", {"chek": True}, "unknown field 'chek'"),
    ],
)
async def test_bad_bodies(steered: Site, path: str, body: Any, words: str) -> None:
    reply = await steered.client.post(path, json=body)
    assert reply.status_code == 400
    assert words in error_of(reply)["message"]
    assert not weight_commands(steered)


async def test_nothing_is_formed_where_tensors_need_no_group(steered: Site) -> None:
    await posted(steered, "/init_weight_transfer_engine", {"init_info": {}})
    assert not weight_commands(steered)
