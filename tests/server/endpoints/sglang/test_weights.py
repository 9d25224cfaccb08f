"""SGLang's routes about weights and memory, over the fake engine."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from engine.contracts.control import AbortRequests, EngineState, RunWeights, Sleep, WakeUp
from engine.contracts.weights import (
    BeginUpdate,
    BucketSource,
    EndGroup,
    FinishUpdate,
    FolderSource,
    GroupSource,
    InitGroup,
    IpcSource,
    PassTensors,
    ReadWeight,
    ReceiveTensors,
    WeightEntry,
    WeightList,
    WeightUpdateError,
    WeightValues,
)
from tests.server.conftest import Site, weight_commands


async def posted(site: Site, path: str, status: int = 200, **body: Any) -> Any:
    reply = await site.client.post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json() if reply.content else None


async def test_the_course_of_slime_s_trainer(steered: Site) -> None:
    """Its bodies, in its order: a group, then buckets of tensors, each an update of its own."""
    await posted(
        steered,
        "/init_weights_update_group",
        master_address="10.0.0.1",
        master_port=1234,
        rank_offset=1,
        world_size=3,
        group_name="slime-pp_0",
        backend="nccl",
    )
    await posted(steered, "/pause_generation")
    assert (await steered.client.get("/flush_cache")).status_code == 200
    done = await posted(
        steered,
        "/update_weights_from_distributed",
        names=["a", "b"],
        dtypes=["torch.bfloat16", "float32"],
        shapes=[[2, 3], []],
        group_name="slime-pp_0",
        flush_cache=False,
        weight_version="5",
    )
    assert done == {"success": True, "message": "Success."}
    await posted(steered, "/continue_generation")
    source = GroupSource(
        group="slime-pp_0",
        names=("a", "b"),
        dtypes=("bfloat16", "float32"),
        shapes=((2, 3), ()),
    )
    assert weight_commands(steered) == [
        InitGroup(
            name="slime-pp_0",
            world_size=3,
            rank_offset=1,
            master_address="10.0.0.1",
            master_port=1234,
            backend="nccl",
        ),
        BeginUpdate(),
        ReceiveTensors(source=source),
        FinishUpdate(version="5"),
    ]
    await posted(steered, "/destroy_weights_update_group", group_name="slime-pp_0")
    assert weight_commands(steered)[-1] == EndGroup(name="slime-pp_0")


async def test_other_sources(steered: Site) -> None:
    pickled = base64.b64encode(b"pickle").decode()
    await posted(
        steered, "/update_weights_from_disk", model_path="/folder", abort_all_requests=True
    )
    await posted(
        steered,
        "/update_weights_from_tensor",
        serialized_named_tensors=[pickled],
        load_format="flattened_bucket",
    )
    await posted(
        steered,
        "/update_weights_from_distributed",
        names=["a"],
        dtypes=["float32"],
        shapes=[[1]],
        load_format="flattened_bucket",
    )
    sources = [each.source for each in weight_commands(steered) if isinstance(each, ReceiveTensors)]
    assert sources == [
        FolderSource(path="/folder"),
        IpcSource(handles=(b"pickle",), layout="flattened_bucket"),
        BucketSource(
            group="weight_update_group", names=("a",), dtypes=("float32",), shapes=((1,),)
        ),
    ]
    assert steered.engine.commands[0] == AbortRequests()


async def test_tensors_of_an_update_that_cannot_begin_are_received(
    steered: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their trainer broadcasts them nevertheless."""
    control = steered.engine.control

    async def refuse(command: Any) -> Any:
        if command == RunWeights(weights=BeginUpdate()):
            raise WeightUpdateError("the weights are asleep", "asleep")
        return await control(command)

    monkeypatch.setattr(steered.engine, "control", refuse)
    fields: dict[str, Any] = {
        "names": ["a"],
        "dtypes": ["float32"],
        "shapes": [[1]],
        "group_name": "g",
    }
    refused = await posted(steered, "/update_weights_from_distributed", 400, **fields)
    assert refused["message"] == "the weights are asleep"
    source = GroupSource(group="g", names=("a",), dtypes=("float32",), shapes=((1,),))
    assert weight_commands(steered) == [PassTensors(source=source)]


async def test_updates_within_a_session_are_parts_of_one(
    steered: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await posted(steered, "/begin_weight_update", selector="all")
    control = steered.engine.control

    async def in_progress(command: Any) -> Any:
        reply = await control(command)
        if isinstance(command, RunWeights) and isinstance(command.weights, BeginUpdate):
            raise WeightUpdateError("an update is in progress", "update_in_progress")
        return reply

    monkeypatch.setattr(steered.engine, "control", in_progress)
    for path in ("/x", "/y"):
        await posted(steered, "/update_weights_from_disk", model_path=path, weight_version="3")
    await posted(steered, "/end_weight_update", weight_version="2")
    begun, _, part, *_ = weight_commands(steered)
    assert begun == BeginUpdate(takes_parts=True)
    assert part == ReceiveTensors(source=FolderSource(path="/x"), is_part=True, version="3")
    assert [type(each) for each in weight_commands(steered)] == [
        *(BeginUpdate, BeginUpdate, ReceiveTensors, BeginUpdate, ReceiveTensors, FinishUpdate),
    ]
    assert weight_commands(steered)[-1] == FinishUpdate(version="2", of_parts=True)


async def test_a_failure_is_a_400_with_its_message(steered: Site) -> None:
    steered.engine.refusal = WeightUpdateError("no such folder", "bad_source")
    found = await posted(steered, "/update_weights_from_disk", 400, model_path="/none")
    assert found == {"success": False, "message": "no such folder"}
    steered.engine.refusal = None
    words = {"names": ["a"], "dtypes": [], "shapes": [[1]]}
    reply = await steered.client.post("/update_weights_from_distributed", json=words)
    assert reply.status_code == 400


async def test_get_weights_by_name(steered: Site) -> None:
    steered.engine.weights_reply = WeightValues(
        name="a", shape=(9, 2), dtype="float32", values=(1.0, 2.0, 3.0, 4.0)
    )
    found = await posted(steered, "/get_weights_by_name", name="a", truncate_size=2)
    assert found == [[1.0, 2.0], [3.0, 4.0]]
    assert weight_commands(steered) == [ReadWeight(name="a", truncate=2)]


async def test_memory(steered: Site) -> None:
    await posted(steered, "/release_memory_occupation", tags=["kv_cache", "cuda_graph"])
    await posted(steered, "/resume_memory_occupation")
    assert steered.engine.commands == [
        Sleep(parts=("kv_cache",)),
        WakeUp(parts=("weights", "kv_cache")),
    ]


async def test_the_checker_and_the_model_s_info(steered: Site) -> None:
    entries = (WeightEntry(name=n, shape=(1,), dtype="float32", checksum=n) for n in ("a", "bc"))
    steered.engine.weights_reply = WeightList(weights=tuple(entries))
    found = await posted(steered, "/weights_checker", skip_tensor_list=["c"])
    assert (found["success"], found["ranks"]) == (True, [{"checksums": {"a": "a"}}])
    steered.engine.state = EngineState(weight_version="8")
    for path in ("/model_info", "/get_model_info"):
        assert (await steered.client.get(path)).json()["weight_version"] == "8"
