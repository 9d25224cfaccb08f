"""vLLM's routes that pause, resume, abort and forget, over the fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.contracts.control import AbortRequests, EngineState, FlushPrefixes, Pause, Resume
from engine.errors import ControlError
from engine.messages.step_output import Finish
from tests.fakes import FakeEngine, says
from tests.server.conftest import Site, error_of, in_process


async def test_there_are_no_such_routes_unless_they_are_asked_for() -> None:
    async with in_process() as site:
        for path in ("/pause", "/resume", "/abort_requests", "/reset_prefix_cache"):
            assert (await site.client.post(path)).status_code == 404


async def test_every_route_needs_the_key() -> None:
    async with in_process(weight_updates=True, api_keys=("k",)) as site:
        for path in ("/pause", "/resume", "/abort_requests", "/pause_generation", "/flush_cache"):
            assert (await site.client.post(path)).status_code == 401
            keyed = await site.client.post(path, headers={"authorization": "Bearer k"})
            assert keyed.status_code in (200, 400)
        assert (await site.client.get("/is_paused")).status_code == 401


@pytest.mark.parametrize(
    ("query", "command"),
    [
        ("", Pause(mode="abort", forgets=True, refuses=True)),
        ("?mode=wait&clear_cache=false", Pause(mode="wait", forgets=False, refuses=True)),
        ("?mode=keep", Pause(mode="keep", forgets=True, refuses=False)),
        ("?mode=keep&new_requests=refuse", Pause(mode="keep", forgets=True, refuses=True)),
        ("?new_requests=queue", Pause(mode="abort", forgets=True, refuses=False)),
    ],
)
async def test_pause(steered: Site, query: str, command: Pause) -> None:
    reply = await steered.client.post(f"/pause{query}")
    assert reply.json() == {"status": "paused", "kept": 3}
    assert steered.engine.commands == [command]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?mode=stop", "mode must be 'abort', 'wait' or 'keep', got \"stop\""),
        ("?clear_cache=2", "clear_cache is not valid"),
        ("?mod=keep", "unknown field 'mod' (did you mean 'mode'?)"),
    ],
)
async def test_a_bad_query(steered: Site, query: str, words: str) -> None:
    reply = await steered.client.post(f"/pause{query}")
    assert reply.status_code == 400
    assert words in error_of(reply)["message"]
    assert not steered.engine.commands


async def test_resume(steered: Site) -> None:
    assert (await steered.client.post("/resume")).json() == {"status": "resumed"}
    assert steered.engine.commands == [Resume()]
    steered.engine.refusal = ControlError("the engine is not paused", "not_paused")
    reply = await steered.client.post("/resume")
    assert reply.status_code == 409
    assert error_of(reply)["code"] == "not_paused"


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (EngineState(asleep=("kv_cache",), lacks_weights=True), "asleep"),
        (EngineState(lacks_weights=True), "no_weights"),
    ],
)
async def test_a_resume_says_what_holds_the_engine_still(
    steered: Site, state: EngineState, status: str
) -> None:
    steered.engine.state = state
    assert (await steered.client.post("/resume")).json() == {"status": status}
    message = (await steered.client.post("/continue_generation")).json()["message"]
    assert message == f"Generation continues later: the engine is held ({status})."


async def test_is_paused(steered: Site) -> None:
    assert (await steered.client.get("/is_paused")).json() == {"is_paused": False}
    steered.engine.state = EngineState(is_paused=True)
    assert (await steered.client.get("/is_paused")).json() == {"is_paused": True}


@pytest.mark.parametrize(
    ("body", "names"),
    [(None, None), ({}, None), ({"request_ids": []}, None), ({"request_ids": ["a"]}, ("a",))],
)
async def test_abort_requests(
    steered: Site, body: dict[str, list[str]] | None, names: tuple[str, ...] | None
) -> None:
    reply = await steered.client.post("/abort_requests", json=body)
    assert reply.json() == {"status": "aborted", "aborted": 3}
    assert steered.engine.commands == [AbortRequests(names=names)]


async def test_a_body_without_a_length_is_heeded(steered: Site) -> None:
    """Where it may be left out: else all requests would be ended, and not the one that is named."""

    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"request_ids": ["a"]}'

    headers = {"content-type": "application/json"}
    reply = await steered.client.post("/abort_requests", content=chunks(), headers=headers)
    assert reply.status_code == 200
    assert steered.engine.commands == [AbortRequests(names=("a",))]


async def test_reset_prefix_cache(steered: Site) -> None:
    assert (await steered.client.post("/reset_prefix_cache")).json() == {"success": True}
    steered.engine.refusal = ControlError("choices hold blocks", "busy")
    path = "/reset_prefix_cache?reset_running_requests=true"
    assert (await steered.client.post(path)).json() == {"success": False}
    body = {"reset_running_requests": True}  # as SkyRL's client sends it
    assert (await steered.client.post("/reset_prefix_cache", json=body)).status_code == 200
    restarts = FlushPrefixes(restarts=True)
    assert steered.engine.commands == [FlushPrefixes(), restarts, restarts]


async def test_get_world_size(steered: Site) -> None:
    assert (await steered.client.get("/get_world_size?include_dp=true")).json() == {"world_size": 1}


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (EngineState(is_paused=True, refuses=True), "paused"),
        (EngineState(is_paused=True, refuses=True, asleep=("kv_cache",)), "asleep"),
        (EngineState(refuses=True, lacks_weights=True), "no_weights"),
    ],
)
async def test_requests_are_refused_while_the_engine_is_held(state: EngineState, code: str) -> None:
    async with in_process() as site:
        site.engine.state = state
        completion = {"model": "fake", "prompt": "x", "max_tokens": 1}
        scoring = {"query": "x", "items": ["y"], "label_token_ids": [1]}
        for path, body in (("/v1/completions", completion), ("/generative_scoring", scoring)):
            reply = await site.client.post(path, json=body)
            assert reply.status_code == 503
            assert reply.headers["retry-after"] == "1"
            assert error_of(reply)["code"] == code
        assert (await site.client.get("/ready")).status_code == 503
        assert (await site.client.get("/health")).status_code == 200


async def test_requests_wait_where_they_are_not_refused() -> None:
    async with in_process() as site:
        site.engine.state = EngineState(is_paused=True)
        await site.complete(prompt="x", max_tokens=1)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_aborted_choice_has_what_it_had(stream: bool) -> None:
    async with in_process(FakeEngine(says("so f", then=Finish.CANCELED))) as site:
        if stream:
            chunks = await site.stream(prompt="x", max_tokens=9)
            text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
            reason = chunks[-1]["choices"][0]["finish_reason"]
        else:
            (choice,) = (await site.complete(prompt="x", max_tokens=9))["choices"]
            text, reason = choice["text"], choice["finish_reason"]
        assert (text, reason) == ("so f", "abort")


async def test_the_engine_knows_a_request_by_the_id_of_its_reply(site: Site) -> None:
    reply = await site.complete(prompt="x", max_tokens=1, request_id="mine")
    assert site.engine.requests[0].name == reply["id"] == "cmpl-mine"


async def test_an_aborted_scoring_request_is_a_503(site: Site) -> None:
    site.engine.scoring_finish = Finish.CANCELED
    body = {"query": "x", "items": ["y"], "label_token_ids": [1]}
    reply = await site.client.post("/generative_scoring", json=body)
    assert (reply.status_code, error_of(reply)["code"]) == (503, "aborted")
