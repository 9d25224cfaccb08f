"""Stored responses over the fake engine: continued, read, deleted, cancelled, whose they are."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from engine.messages.step_output import Finish
from server.config import ResponseStoreConfig
from server.http.body import INLINE_BYTES, BodyReader
from server.response_store.database import ResponseDatabase
from server.response_store.records import StoreError
from tests.fakes import FakeEngine, says
from tests.server.conftest import MODEL, Site, error_of, in_process, on_a_port
from tests.server.endpoints.agents import KEY, TEMPLATE, looks_then_answers
from tests.server.endpoints.chat.chats import prompt_of
from tests.server.endpoints.responses.sent import LOOK, events_of, respond

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}[assistant]"
OTHER = "another"


def asked_of(site: Site) -> str:
    """The text of the last prompt; the id of `<eos>` is no byte."""
    return prompt_of(site).replace("\0", "<eos>")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    engine = FakeEngine(says("Hi"), max_model_len=2048)
    async with in_process(engine, chat_template=PLAIN) as site:
        yield site


async def get(site: Site, path: str, status: int = 200, **query: Any) -> Any:
    reply = await site.client.get(f"/v1/responses/{path}", params=query)
    assert reply.status_code == status, reply.text
    return reply.json() if status == 200 else error_of(reply)


class TestContinuing:
    async def test_the_whole_conversation_is_the_prompt(self, site: Site) -> None:
        first = await respond(site, instructions="Be brief.")
        second = await respond(
            site, input="And now?", previous_response_id=first["id"], instructions="Be long."
        )
        assert second["previous_response_id"] == first["id"]
        assert asked_of(site) == (
            "[system]Be long.<eos>[user]hello<eos>[assistant]Hi<eos>[user]And now?<eos>[assistant]"
        )
        third = await respond(site, input="And?", previous_response_id=second["id"])
        assert asked_of(site).count("Hi") == 2
        assert Response.model_validate(await get(site, third["id"])).output_text == "Hi"

    async def test_a_stream_is_stored_by_its_last_event(self, site: Site) -> None:
        body = {"model": MODEL, "input": "hello", "stream": True}
        events = events_of(await site.client.post("/v1/responses", json=body))
        last = events[-1]["response"]
        assert last["store"] is True
        assert await get(site, last["id"]) == last

    async def test_references_to_items(self, site: Site) -> None:
        first = await respond(site)
        [said] = first["output"]
        turns = [{"role": "user", "content": "a"}, {"id": said["id"]}]
        await respond(site, input=[*turns, {"role": "user", "content": "b"}])
        assert asked_of(site) == "[user]a<eos>[assistant]Hi<eos>[user]b<eos>[assistant]"
        error = await respond(site, 404, input=[{"type": "item_reference", "id": "msg_no"}])
        assert error["param"] == "input[0].id"

    async def test_what_is_stored_may_take_as_much_as_a_body(self, tmp_path: Path) -> None:
        engine = FakeEngine(says("Hi"), max_model_len=2048)
        thoughts = {"type": "reasoning", "summary": [], "encrypted_content": "x" * 6000}
        async with in_process(engine, chat_template=PLAIN, max_body_bytes=20_000) as site:
            first = await respond(site, input=[thoughts, {"role": "user", "content": "a"}])
            listed = await get(site, f"{first['id']}/input_items", order="asc")
            reference = {"id": listed["data"][0]["id"]}
            said = {"role": "user", "content": "b"}
            await respond(site, input=[reference] * 3 + [said])
            error = await respond(site, 400, input=[reference] * 4 + [said])
            assert (error["param"], error["code"]) == ("input", "conversation_too_large")
            last = await respond(
                site, input=[reference, said, reference], previous_response_id=first["id"]
            )
            last = await respond(site, input=[thoughts, said], previous_response_id=last["id"])
            error = await respond(site, 400, previous_response_id=last["id"])
            assert (error["param"], error["code"]) == (
                "previous_response_id",
                "conversation_too_large",
            )
            assert "--max-body-bytes 20000" in error["message"]
            assert (await get(site, f"{last['id']}/input_items"))["data"]

    async def test_large_ones_wait_for_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = FakeEngine(says("Hi"), max_model_len=2048)
        thoughts = {"type": "reasoning", "summary": [], "encrypted_content": "x" * INLINE_BYTES}
        reserved: list[int] = []
        reserve = BodyReader.reserve

        async def watched(self: BodyReader, scope: Any, num_bytes: int) -> None:
            reserved.append(num_bytes)
            await reserve(self, scope, num_bytes)

        monkeypatch.setattr(BodyReader, "reserve", watched)
        async with in_process(engine, chat_template=PLAIN) as site:
            first = await respond(site, input=[thoughts, {"role": "user", "content": "a"}])
            assert reserved == []
            await respond(site, previous_response_id=first["id"])
            [num_bytes] = reserved
            assert INLINE_BYTES < num_bytes < INLINE_BYTES + 1000
            assert site.context.bodies._memory._taken == 0

    async def test_a_tool_loop_that_sends_results_alone(self) -> None:
        engine = FakeEngine(looks_then_answers, max_model_len=2048)
        async with in_process(engine, chat_template=TEMPLATE) as site:
            first = await respond(site, input="Where is it?", tools=[LOOK])
            call = first["output"][-1]
            said = {"type": "function_call_output", "call_id": call["call_id"], "output": "there"}
            second = await respond(
                site, input=[said], previous_response_id=first["id"], tools=[LOOK]
            )
        assert second["output"][-1]["content"][0]["text"] == "It is there."

    async def test_what_cannot_be_continued(self, site: Site) -> None:
        first = await respond(site)
        second = await respond(site, previous_response_id=first["id"])
        await site.client.delete(f"/v1/responses/{first['id']}")
        error = await respond(site, 400, previous_response_id=second["id"])
        assert error["code"] == "previous_response_not_found"
        assert "deleted or has expired" in error["message"]
        error = await respond(site, 400, previous_response_id="x" * 10_000)
        assert error["param"] == "previous_response_id"

    async def test_what_is_not_stored(self, site: Site) -> None:
        reply = await respond(site, store=False)
        assert reply["store"] is False
        assert (await get(site, reply["id"], 404))["code"] == "response_not_found"
        async with in_process(
            FakeEngine(says("Hi")), chat_template=PLAIN, response_store=None
        ) as none:
            assert (await respond(none))["store"] is False
            for fields in ({"store": True}, {"previous_response_id": "resp_1"}):
                error = await respond(none, 400, **fields)
                assert error["code"] == "responses_not_stored"
                assert error["param"] in fields
            await get(none, "resp_1", 400)

    async def test_ids_of_the_requests_own(self, site: Site) -> None:
        """The header of a proxy may be the same for each request; a name in the body may not."""
        replies = [
            (
                await site.client.post(
                    "/v1/responses", json={"input": "a"}, headers={"x-request-id": "same"}
                )
            ).json()
            for _ in range(2)
        ]
        assert replies[0]["id"] != replies[1]["id"]
        assert (await respond(site, request_id="mine"))["id"] == "resp_mine"
        error = await respond(site, 400, request_id="mine")
        assert error["param"] == "request_id"

    async def test_one_that_failed_or_was_refused_is_not_there(self) -> None:
        engine = FakeEngine(says("", Finish.ERROR))
        async with in_process(engine, chat_template=PLAIN) as site:
            await respond(site, 500, request_id="mine")
            await asyncio.sleep(0.05)
            await get(site, "resp_mine", 404)

    async def test_a_stream_that_fails_is_kept_as_it_ended(self) -> None:
        engine = FakeEngine(says("I look.", Finish.ERROR))
        async with in_process(engine, chat_template=PLAIN) as site:
            body = {"model": MODEL, "input": "hello", "stream": True}
            events = events_of(await site.client.post("/v1/responses", json=body))
            last = events[-1]["response"]
            assert (last["status"], last["output"][0]["status"]) == ("failed", "incomplete")
            assert await get(site, last["id"]) == last


class TestItems:
    async def test_the_input_items(self, site: Site) -> None:
        first = await respond(site, input=[{"role": "user", "content": "a", "id": "msg_own"}])
        second = await respond(site, input="b", previous_response_id=first["id"])
        path = f"{second['id']}/input_items"
        listed = await get(site, path, order="asc")
        texts = [item["content"][0]["text"] for item in listed["data"]]
        assert texts == ["a", "Hi", "b"]
        assert listed["data"][0]["id"] == listed["first_id"] == "msg_own"
        assert listed["has_more"] is False
        newest = await get(site, path, limit=1)
        assert newest["data"][0]["content"][0]["text"] == "b"
        assert newest["has_more"] is True
        rest = await get(site, path, after=newest["last_id"])
        assert [item["content"][0]["text"] for item in rest["data"]] == ["Hi", "a"]
        for query in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "no"}):
            error = await get(site, path, 400, **query)
            assert error["param"] in query

    async def test_by_the_openai_package(self) -> None:
        engine = FakeEngine(says("Hi"), max_model_len=2048)
        async with on_a_port(engine, chat_template=PLAIN) as site:
            client = openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="k", max_retries=0)
            async with client:
                first = await client.responses.create(model=MODEL, input="a")
                turn: Any = [{"type": "message", "role": "assistant", "content": "c"}]
                second = await client.responses.create(
                    model=MODEL, input=turn, previous_response_id=first.id
                )
                items = [i async for i in client.responses.input_items.list(second.id, limit=2)]
                assert [item.type for item in items] == ["message"] * 3
                counted = await client.responses.input_tokens.count(
                    model=MODEL, input="b", previous_response_id=first.id
                )
                third = await client.responses.create(
                    model=MODEL, input="b", previous_response_id=first.id
                )
                assert third.usage is not None
                assert counted.input_tokens == third.usage.input_tokens
                assert (await client.responses.retrieve(second.id)) == second
                await client.responses.delete(second.id)
                with pytest.raises(openai.NotFoundError):
                    await client.responses.retrieve(second.id)

    async def test_reading_as_a_stream(self, site: Site) -> None:
        first = await respond(site)
        assert (await get(site, first["id"], 400, stream="true"))["param"] == "stream"


class TestOwners:
    async def test_a_response_belongs_to_the_key_that_made_it(self) -> None:
        engine = FakeEngine(says("Hi"), max_model_len=2048)
        async with in_process(engine, chat_template=PLAIN, api_keys=(KEY, OTHER)) as site:
            site.client.headers["authorization"] = f"Bearer {KEY}"
            mine = await respond(site, request_id="mine")
            item = mine["output"][0]["id"]
            site.client.headers["authorization"] = f"Bearer {OTHER}"
            path = f"/v1/responses/{mine['id']}"
            for reply in (
                await site.client.get(path),
                await site.client.get(f"{path}/input_items"),
                await site.client.post(f"{path}/cancel"),
                await site.client.delete(path),
            ):
                assert reply.status_code == 404
                assert error_of(reply)["code"] == "response_not_found"
            await respond(site, 400, previous_response_id=mine["id"])
            await respond(site, 404, input=[{"id": item}])
            assert (await respond(site, request_id="mine"))["id"] == mine["id"]
            site.client.headers.pop("authorization")
            site.client.headers["x-api-key"] = KEY
            assert await get(site, mine["id"]) == mine


class TestCancelling:
    async def test_a_stream(self) -> None:
        engine = FakeEngine(says("x" * 200), step_s=0.02)
        async with in_process(engine, chat_template=PLAIN) as site:
            running = asyncio.create_task(
                site.client.post(
                    "/v1/responses", json={"input": "a", "stream": True, "request_id": "mine"}
                )
            )
            assert (await _running(site))["status"] == "in_progress"
            error = await respond(site, 400, previous_response_id="resp_mine")
            assert "not finished" in error["message"]
            reply = await site.client.post("/v1/responses/resp_mine/cancel")
            assert reply.json()["status"] == "cancelled"
            events = events_of(await running)
            assert events[-1]["type"] == "response.incomplete"
            assert events[-1]["response"] == reply.json() == await get(site, "resp_mine")
            assert engine.aborted
            again = await site.client.post("/v1/responses/resp_mine/cancel")
            assert again.json() == reply.json()
            assert site.metric("tailrace_request_success_total", finished_reason="abort") == 1

    async def test_a_plain_reply(self) -> None:
        engine = FakeEngine(says("x" * 200), step_s=0.02)
        async with in_process(engine, chat_template=PLAIN) as site:
            running = asyncio.create_task(respond(site, request_id="mine"))
            await _running(site)
            reply = await site.client.post("/v1/responses/resp_mine/cancel")
            assert reply.json()["status"] == (await running)["status"] == "cancelled"
            assert engine.aborted

    async def test_one_that_another_front_runs(self, tmp_path: Path) -> None:
        config: dict[str, Any] = {
            "chat_template": PLAIN,
            "response_store": ResponseStoreConfig(str(tmp_path / "responses.db")),
        }
        engine = FakeEngine(says("x" * 200), step_s=0.05)
        async with in_process(engine, **config) as runs, in_process(**config) as asked:
            running = asyncio.create_task(respond(runs, request_id="mine"))
            await _running(asked)
            reply = await asked.client.post("/v1/responses/resp_mine/cancel")
            assert reply.json()["status"] == (await running)["status"] == "cancelled"

    async def test_one_that_has_ended(self, site: Site) -> None:
        first = await respond(site)
        reply = await site.client.post(f"/v1/responses/{first['id']}/cancel")
        assert error_of(reply)["code"] == "response_not_running"

    async def test_a_client_that_leaves(self) -> None:
        engine = FakeEngine(says("x" * 200), step_s=0.02)
        async with on_a_port(engine, chat_template=PLAIN) as site:
            with pytest.raises(httpx.ReadTimeout):
                await site.client.post(
                    "/v1/responses", json={"input": "a", "request_id": "mine"}, timeout=0.2
                )
            for _ in range(100):
                if (await site.client.get("/v1/responses/resp_mine")).status_code == 404:
                    break
                await asyncio.sleep(0.02)
            await get(site, "resp_mine", 404)


async def _running(site: Site) -> dict[str, Any]:
    """The response of the id `mine`, once it runs."""
    for _ in range(200):
        reply = await site.client.get("/v1/responses/resp_mine")
        if reply.status_code == 200:
            found: dict[str, Any] = json.loads(reply.text)
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("it does not run")


class TestBrokenFiles:
    async def test_replies_come_all_the_same(self, tmp_path: Path) -> None:
        """And say that they are not stored; what is read is an error that says why."""
        path = tmp_path / "responses.db"
        path.write_bytes(b"no database " * 1000)
        config: dict[str, Any] = {
            "chat_template": PLAIN,
            "response_store": ResponseStoreConfig(str(path)),
        }
        async with in_process(FakeEngine(says("Hi")), **config) as site:
            reply = await respond(site)
            assert (reply["status"], reply["store"]) == ("completed", False)
            body = {"model": MODEL, "input": "hello", "stream": True}
            events = events_of(await site.client.post("/v1/responses", json=body))
            assert events[-1]["response"]["store"] is False
            error = await get(site, reply["id"], 500)
            assert error["code"] == "response_store_failed"
            assert (await respond(site, 500, previous_response_id="resp_1"))["code"] == error[
                "code"
            ]

    async def test_one_that_breaks_at_the_end(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def finish(*args: Any) -> None:
            raise StoreError("database or disk is full")

        monkeypatch.setattr(ResponseDatabase, "finish", finish)
        assert (await respond(site))["store"] is False


async def test_a_slow_file_holds_nobody_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the file does, it does on a thread of its own."""
    begin = ResponseDatabase.begin

    def slow(*args: Any) -> int:
        time.sleep(0.5)
        return begin(*args)

    monkeypatch.setattr(ResponseDatabase, "begin", slow)
    stored = asyncio.create_task(respond(site))
    await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await respond(site, store=False)
    assert loop.time() - began < 0.3
    assert (await stored)["store"] is True
