"""Responses in the background over the fake engine: polled, cancelled, failed, waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

from engine.messages.step_output import Finish
from server.config import ResponseStoreConfig
from server.response_store.database import ResponseDatabase
from server.response_store.records import StoreError
from tests.fakes import FakeEngine, says
from tests.server.conftest import MODEL, Site, error_of, in_process, on_a_port
from tests.server.endpoints.responses.sent import respond

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}[assistant]"


async def read(site: Site, response_id: str) -> dict[str, Any]:
    reply = await site.client.get(f"/v1/responses/{response_id}")
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def once(
    site: Site, response_id: str, is_so: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """The response at every look, until it is so."""
    looks: list[dict[str, Any]] = []
    async with asyncio.timeout(10):
        while not (looks and is_so(looks[-1])):
            looks.append(await read(site, response_id))
            await asyncio.sleep(0.005)
    return looks


def _has_ended(response: dict[str, Any]) -> bool:
    return response["status"] not in ("queued", "in_progress")


async def test_a_client_polls() -> None:
    async with on_a_port(FakeEngine(says("x" * 100), step_s=0.01), chat_template=PLAIN) as site:
        async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="k") as client:
            first = await client.responses.create(model=MODEL, input="hello", background=True)
            assert (first.status, first.background, first.output) == ("queued", True, [])
            seen = [first.status]
            while seen[-1] in ("queued", "in_progress"):
                found = await client.responses.retrieve(first.id)
                assert found.background
                if found.status != seen[-1]:
                    assert found.status is not None
                    seen.append(found.status)
            assert seen == ["queued", "in_progress", "completed"]
            assert found.output_text == "x" * 100
            assert found.usage is not None
            assert found.usage.output_tokens == 101
        again = await respond(site, previous_response_id=first.id)
        assert again["usage"]["input_tokens"] > found.usage.total_tokens


async def test_the_same_reply_as_in_the_foreground() -> None:
    async with in_process(FakeEngine(says("Hi")), chat_template=PLAIN) as site:
        plain = await respond(site, seed=1)
        begun = await respond(site, seed=1, background=True)
        found = (await once(site, begun["id"], _has_ended))[-1]
        own = ("id", "created_at", "completed_at", "background", "output")
        for one in (plain, found):
            assert one["output"][0]["content"][0]["text"] == "Hi"
            for name in own:
                one.pop(name)
        assert found == plain


async def test_cancelling() -> None:
    engine = FakeEngine(says("x" * 200), step_s=0.02)
    async with in_process(engine, chat_template=PLAIN) as site:
        begun = await respond(site, background=True)
        reply = await site.client.post(f"/v1/responses/{begun['id']}/cancel")
        assert reply.json()["status"] == "cancelled"
        assert engine.aborted
        assert await read(site, begun["id"]) == reply.json()
        assert site.metric("tailrace_request_success_total", finished_reason="abort") == 1


async def test_one_that_fails_is_kept() -> None:
    async with in_process(FakeEngine(says("x", Finish.NAN)), chat_template=PLAIN) as site:
        begun = await respond(site, background=True)
        found = (await once(site, begun["id"], _has_ended))[-1]
        assert found["status"] == "failed"
        assert found["error"]["code"] == "server_error"


async def test_too_many_are_refused_at_once() -> None:
    engine = FakeEngine(says("x" * 200), step_s=0.02, max_rows=1)
    async with in_process(engine, chat_template=PLAIN, max_waiting_requests=0) as site:
        begun = await respond(site, background=True)
        body = {"model": MODEL, "input": "hello", "background": True, "request_id": "second"}
        reply = await site.client.post("/v1/responses", json=body)
        assert reply.status_code == 429
        await asyncio.sleep(0.05)
        assert (await site.client.get("/v1/responses/resp_second")).status_code == 404
        await site.client.post(f"/v1/responses/{begun['id']}/cancel")


async def test_what_cannot_be_stored_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    store = ResponseStoreConfig(str(tmp_path / "responses.db"))
    async with in_process(
        FakeEngine(says("Hi")), chat_template=PLAIN, response_store=store
    ) as site:
        monkeypatch.setattr(ResponseDatabase, "begin", fail)
        body = {"model": MODEL, "input": "hello", "background": True}
        reply = await site.client.post("/v1/responses", json=body)
        assert reply.status_code == 500
        assert error_of(reply)["code"] == "response_store_failed"
        assert not site.engine.requests
        # In the foreground the client has the reply all the same.
        assert (await respond(site))["store"] is False


async def test_a_server_that_ends_waits_for_it() -> None:
    engine = FakeEngine(says("x" * 40), step_s=0.01)
    async with in_process(engine, chat_template=PLAIN) as site:
        begun = await respond(site, background=True)
        assert await site.context.lifecycle.drain(5)
        site.context.lifecycle.draining = False
        assert (await read(site, begun["id"]))["status"] == "completed"
