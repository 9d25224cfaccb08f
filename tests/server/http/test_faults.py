"""An engine that fails: real statuses before the first byte, events after, nobody left waiting."""

from __future__ import annotations

import asyncio
import json

import pytest

from engine.messages.step_output import Finish
from tests.fakes import FakeEngine, says
from tests.server.conftest import error_of, eventually, in_process, on_a_port


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("finish", "code"), [(Finish.NAN, "nan_logits"), (Finish.ERROR, "engine_error")]
)
async def test_before_the_first_byte_it_is_a_500(finish: Finish, code: str, stream: bool) -> None:
    async with in_process(FakeEngine(lambda *_: finish)) as site:
        error = await site.refused(500, prompt="a", stream=stream)
        assert (error["code"], error["type"]) == (code, "server_error")
        assert site.metric("tailrace_request_outcomes_total", outcome="server_error") == 1


async def test_afterwards_it_is_an_event_and_tokens_before_it_stand() -> None:
    async with in_process(FakeEngine(says("hi", then=Finish.NAN))) as site:
        reply = await site.client.post("/v1/completions", json={"prompt": "a", "stream": True})
        events = reply.text.split("\n\n")
        assert reply.status_code == 200
        assert events[-2:] == ["data: [DONE]", ""]
        error = json.loads(events[-3].removeprefix("data: "))["error"]
        assert error["code"] == "nan_logits"
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-3]]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hi"
        assert site.metric("tailrace_request_outcomes_total", outcome="server_error") == 1
        assert site.metric("tailrace_request_success_total", finished_reason="error") == 1


async def test_one_failed_choice_fails_its_request_and_ends_the_others() -> None:
    def script(request: object, choice: int, position: int) -> int | Finish:
        return Finish.NAN if choice == 1 and position == 3 else 97

    engine = FakeEngine(script)
    async with in_process(engine) as site:
        neighbour = asyncio.create_task(site.complete(prompt="b", max_tokens=30))
        error = await site.refused(500, prompt="a", n=3, max_tokens=200)
        assert error["code"] == "nan_logits"
        assert (await neighbour)["choices"][0]["text"] == "a" * 30
        await eventually(lambda: engine.idle)
        assert sorted(choice for _, choice in engine.aborted) == [0, 2]


async def test_a_dead_engine_tells_everybody_at_once() -> None:
    engine = FakeEngine(step_s=0.01)
    async with on_a_port(engine) as site:
        body = {"prompt": "a", "max_tokens": 200}
        waiting = [
            asyncio.create_task(site.client.post("/v1/completions", json={**body, "stream": s}))
            for s in (False, True)
        ]
        await eventually(lambda: len(engine.requests) == 2 and engine.stats is not None)
        assert (await site.client.get("/health")).status_code == 200
        engine.die("killed by a test")
        async with asyncio.timeout(30):
            plain, streamed = await asyncio.gather(*waiting)
        assert plain.status_code == 500
        assert error_of(plain)["code"] == "engine_dead"
        assert "killed by a test" in error_of(plain)["message"]
        assert '"code":"engine_dead"' in streamed.text
        assert streamed.text.endswith("data: [DONE]\n\n")
        for path in ("/health", "/ready"):
            reply = await site.client.get(path)
            assert reply.status_code == 503
            assert "killed by a test" in error_of(reply)["message"]
        late = await site.client.post("/v1/completions", json=body)
        assert (late.status_code, error_of(late)["code"]) == (500, "engine_dead")
        assert site.metric("tailrace_engine_up") == 0


async def test_a_bug_is_a_500_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("server.generation.render.Renderer.reply", broken)
    async with in_process() as site:
        error = await site.refused(500, prompt="a")
        assert error["message"] == "internal error"
        assert site.metric("tailrace_request_outcomes_total", outcome="server_error") == 1


async def test_a_bug_in_mid_stream_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    from server.generation.streaming import ChunkWriter

    original = ChunkWriter.chunks
    calls = []

    def broken(self: ChunkWriter, changed: list[object]) -> bytes:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("a secret")
        return original(self, changed)  # type: ignore[arg-type]

    monkeypatch.setattr(ChunkWriter, "chunks", broken)
    async with in_process() as site:
        reply = await site.client.post("/v1/completions", json={"prompt": "a", "stream": True})
        assert '"message":"internal error"' in reply.text
        assert "secret" not in reply.text
        await eventually(lambda: site.engine.idle)
