"""vLLM's routes of sleep, over the fake engine."""

from __future__ import annotations

from typing import Any

import pytest

from engine.contracts.control import EngineState, Pause, Sleep, WakeUp
from engine.errors import ControlError
from tests.server.conftest import Site, error_of, in_process


@pytest.mark.parametrize(
    ("query", "commands"),
    [
        ("", [Pause(mode="abort", for_sleep=True), Sleep()]),
        ("?level=0&mode=keep", [Pause(mode="keep", for_sleep=True)]),
        (
            "?level=2&mode=wait",
            [Pause(mode="wait", for_sleep=True), Sleep(keeps_weights=False)],
        ),
        ("?new_requests=queue", [Pause(refuses=False, for_sleep=True), Sleep()]),
        (
            "?level=2&tags=weights",
            [Pause(for_sleep=True), Sleep(parts=("weights",), keeps_weights=False)],
        ),
    ],
)
async def test_sleep(steered: Site, query: str, commands: list[Pause | Sleep]) -> None:
    reply = await steered.client.post(f"/sleep{query}")
    assert reply.json()["status"] == "sleeping"
    assert steered.engine.commands == commands


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (EngineState(is_paused=True), 0),
        (EngineState(asleep=("kv_cache",)), 1),
        (EngineState(asleep=("weights", "kv_cache")), 1),
        (EngineState(asleep=("weights",), lacks_weights=True), 2),
    ],
)
async def test_the_level_is_the_engine_s(steered: Site, state: EngineState, level: int) -> None:
    """Whatever was asked for: it may have slept before."""
    steered.engine.state = state
    for asked in (0, 1, 2):
        reply = await steered.client.post(f"/sleep?level={asked}")
        assert reply.json() == {"status": "sleeping", "level": level}


async def test_a_sleep_that_is_refused_ends_its_pause(
    steered: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = steered.engine.control

    async def refuses_to_sleep(command: Any) -> Any:
        if isinstance(command, Sleep):
            raise ControlError("the host has no room", "no_memory")
        return await control(command)

    monkeypatch.setattr(steered.engine, "control", refuses_to_sleep)
    reply = await steered.client.post("/sleep")
    assert (reply.status_code, error_of(reply)["code"]) == (503, "no_memory")
    assert steered.engine.commands == [Pause(for_sleep=True), WakeUp(parts=())]


async def test_a_server_that_cannot_sleep_ends_no_requests_for_it() -> None:
    async with in_process(weight_updates=True) as site:
        reply = await site.client.post("/sleep")
        assert (reply.status_code, error_of(reply)["code"]) == (400, "no_sleep")
        assert not site.engine.commands
        assert (await site.client.post("/sleep?level=0")).json()["level"] == 0


async def test_a_server_that_has_no_room_to_wake_up_may_be_asked_again(steered: Site) -> None:
    steered.engine.refusal = ControlError("the GPU has no room", "no_memory")
    reply = await steered.client.post("/wake_up")
    assert (reply.status_code, error_of(reply)["code"]) == (503, "no_memory")
    assert error_of(reply)["message"] == "the GPU has no room"
    assert int(reply.headers["retry-after"]) > 0


async def test_wake_up_by_parts(steered: Site) -> None:
    steered.engine.state = EngineState(asleep=("kv_cache",))
    reply = await steered.client.post("/wake_up?tags=weights")
    assert reply.json() == {"status": "sleeping", "tags": ["weights"]}
    found = (await steered.client.get("/is_sleeping")).json()
    assert found == {"is_sleeping": True, "asleep": ["kv_cache"]}
    steered.engine.state = EngineState()
    reply = await steered.client.post("/wake_up")
    assert reply.json() == {"status": "awake", "tags": None}
    assert steered.engine.commands == [WakeUp(parts=("weights",)), WakeUp()]
    assert (await steered.client.post("/wake_up?tags=graphs")).status_code == 400
