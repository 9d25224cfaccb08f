"""SGLang's routes that pause, continue, abort and flush, over the fake engine."""

from __future__ import annotations

import pytest

from engine.contracts.control import AbortRequests, FlushPrefixes, Pause, Resume
from engine.errors import ControlError
from tests.server.conftest import Site, error_of


@pytest.mark.parametrize(
    ("body", "command"),
    [
        ({}, Pause(mode="abort", forgets=True, refuses=False)),
        ({"mode": "retract"}, Pause(mode="keep", forgets=True, refuses=False)),
        ({"mode": "in_place"}, Pause(mode="keep", forgets=False, refuses=False)),
    ],
)
async def test_pause_and_continue(steered: Site, body: dict[str, str], command: Pause) -> None:
    reply = await steered.client.post("/pause_generation", json=body)
    assert reply.json() == {"message": "Generation paused successfully.", "status": "ok"}
    reply = await steered.client.post("/continue_generation", json={"torch_empty_cache": True})
    assert reply.json()["status"] == "ok"
    assert steered.engine.commands == [command, Resume()]


async def test_abort_request(steered: Site) -> None:
    for body in ({"rid": "mine"}, {"rid": "", "abort_all": True}):
        assert (await steered.client.post("/abort_request", json=body)).status_code == 200
    assert steered.engine.commands == [AbortRequests(names=("mine",)), AbortRequests()]
    refused = await steered.client.post("/abort_request", json={})
    assert error_of(refused)["param"] == "rid"


async def test_flush_cache(steered: Site) -> None:
    for method in ("GET", "POST"):
        reply = await steered.client.request(method, "/flush_cache")
        assert (reply.status_code, reply.text) == (200, "Cache flushed.\n")
    steered.engine.refusal = ControlError("2 choices hold blocks", "busy")
    reply = await steered.client.post("/flush_cache?timeout=0.1")
    assert reply.status_code == 400
    assert "2 choices hold blocks" in reply.text
    assert steered.engine.commands[:2] == [FlushPrefixes()] * 2
    assert len(steered.engine.commands) > 3, "it tried again until the time was over"
