"""The requests of SkyRL's client, with their fields, and what it makes of the replies."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.contracts.adapters import AdapterSource
from engine.contracts.control import (
    AnyCommand,
    FlushPrefixes,
    LoadAdapter,
    Pause,
    Resume,
    RunWeights,
    Sleep,
    WakeUp,
)
from engine.contracts.weights import (
    AnyWeightCommand,
    BeginUpdate,
    FinishUpdate,
    GroupSource,
    InitGroup,
    IpcSource,
    ReceiveTensors,
)
from tests.server.conftest import Site, error_of, in_process

TENSORS: dict[str, Any] = {
    "names": ["a", "b"],
    "dtype_names": ["bfloat16", "bfloat16"],
    "shapes": [[2, 3], [4]],
}
START = {"method": "skyrl_start_weight_update", "kwargs": {"is_checkpoint_format": True}}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with in_process(weight_updates=True) as site:
        yield site


async def called(site: Site, path: str, body: Any = None, **params: Any) -> Any:
    """As `_call_server`, which reads JSON of every reply that has content."""
    reply = await site.client.post(path, json=body, params=params)
    assert reply.status_code == 200, reply.text
    return reply.json() if reply.content else None


def weights(*commands: AnyWeightCommand) -> list[AnyCommand]:
    return [RunWeights(weights=command) for command in commands]


async def test_an_update_over_the_group(site: Site) -> None:
    """The memory of weights and cache is lent to the trainer meanwhile."""
    assert (await site.client.get("/get_world_size")).json() == {"world_size": 1}
    group = {"master_address": "10.0.0.1", "master_port": 51216, "rank_offset": 1, "world_size": 2}
    await called(site, "/init_weight_transfer_engine", {"init_info": group})
    await called(site, "/pause", mode="keep", clear_cache="false")
    nap = {"method": "skyrl_sleep_for_weight_sync", "kwargs": {"offload_kv": True}}
    wake = "skyrl_wake_for_weight_sync"
    receive = {
        "method": "update_weights_nccl",
        "kwargs": {"update_info": TENSORS | {"packed": True}},
    }
    for body in (
        nap,
        {"method": wake, "kwargs": {"tags": ["weights"]}},
        START,
        receive,
        {"method": "skyrl_finish_weight_update"},
        {"method": wake, "kwargs": {"tags": ["kv_cache"]}},
    ):
        assert await called(site, "/collective_rpc", body) == {"results": [None]}
    await called(site, "/reset_prefix_cache", {"reset_running_requests": True})
    await called(site, "/resume")
    source = GroupSource(
        group="vllm",
        names=("a", "b"),
        dtypes=("bfloat16", "bfloat16"),
        shapes=((2, 3), (4,)),
        packed=True,
    )
    formed, *others = site.engine.commands
    assert isinstance(formed, RunWeights)
    assert isinstance(formed.weights, InitGroup)
    assert others == [
        Pause(mode="keep", forgets=False, refuses=False),
        Sleep(keeps_weights=False),
        WakeUp(parts=("weights",)),
        *weights(BeginUpdate(), ReceiveTensors(source=source), FinishUpdate()),
        WakeUp(parts=("kv_cache",)),
        FlushPrefixes(restarts=True),
        Resume(),
    ]


async def test_an_update_by_handles(site: Site) -> None:
    """Sizes are counts of numbers, of which a bfloat16 has two bytes."""
    handle = base64.b64encode(b"pickle").decode()
    info = TENSORS | {"sizes": [6, 4], "ipc_handles_pickled": handle}
    body = {"method": "update_weights_ipc", "kwargs": {"update_info": info}}
    await called(site, "/collective_rpc", body)
    source = IpcSource(
        handles=(b"pickle",),
        names=("a", "b"),
        dtypes=("bfloat16", "bfloat16"),
        shapes=((2, 3), (4,)),
        sizes=(12, 8),
    )
    assert site.engine.commands == weights(ReceiveTensors(source=source))


IPC = {"sizes": [6, 4], "ipc_handles_pickled": "AAAA"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"method": "exec"}, "method must be"),
        (START | {"args": [1]}, "args"),
        (START | {"kwargs": {"is_checkpoint_format": False}}, "is_checkpoint_format"),
        (START | {"kwargs": {"chek": 1}}, "unknown field 'chek'"),
        ({"method": "update_weights_nccl"}, "update_info"),
        (
            {
                "method": "update_weights_ipc",
                "kwargs": {"update_info": TENSORS | IPC | {"sizes": []}},
            },
            "must have as many sizes as names (2), got 0",
        ),
        (
            {
                "method": "update_weights_ipc",
                "kwargs": {"update_info": TENSORS | IPC | {"dtype_names": ["x", "bfloat16"]}},
            },
            "dtype_names has 'x'",
        ),
        ({"method": "skyrl_wake_for_weight_sync", "kwargs": {"tags": ["graphs"]}}, "tags"),
    ],
)
async def test_methods_that_cannot_be_followed(site: Site, body: Any, words: str) -> None:
    reply = await site.client.post("/collective_rpc", json=body)
    assert reply.status_code == 400, reply.text
    assert words in error_of(reply)["message"]
    assert not site.engine.commands


async def test_an_adapter_takes_the_place_of_the_one_before() -> None:
    async with in_process(weight_updates=True, enable_lora=True) as site:
        body = {"lora_name": "policy", "lora_path": "/adapters/7"}
        loaded = await called(site, "/skyrl/v1/load_lora_adapter", body)
    assert loaded == {"status": "ok", "lora_name": "policy"}
    source = AdapterSource("/adapters/7")
    assert site.engine.commands == [LoadAdapter(name="policy", source=source, replaces=True)]
