"""The queue's limit: counted in prompts, answered early, let go at the end."""

from __future__ import annotations

import asyncio

from server.http.admission import AdmissionControl
from tests.fakes import FakeEngine
from tests.server.conftest import error_of, eventually, in_process


async def test_each_prompt_of_a_list_counts() -> None:
    async with in_process(FakeEngine(max_rows=2), max_waiting_requests=2) as site:
        await site.complete(prompt=["a"] * 4, max_tokens=1)
        reply = await site.client.post("/v1/completions", json={"prompt": ["a"] * 5})
        assert reply.status_code == 429
        assert reply.headers["retry-after"] == "1"
        error = error_of(reply)
        assert error["type"] == "rate_limit_error"
        assert error["code"] == "queue_full"
        assert "with this request 3, at most 2 (--max-waiting-requests)" in error["message"]
        assert site.metric("tailrace_request_outcomes_total", outcome="rejected") == 1


async def test_a_full_queue_empties() -> None:
    engine = FakeEngine(step_s=0.002, max_rows=1)
    async with in_process(engine, max_waiting_requests=1) as site:
        first = [asyncio.create_task(site.complete(prompt="a", max_tokens=9)) for _ in range(2)]
        await eventually(lambda: len(engine.requests) == 2)
        await site.refused(429, prompt="a")
        await site.refused(429, prompt="a", stream=True)
        await asyncio.gather(*first)
        await site.complete(prompt="a")


async def test_zero_lets_only_rows_in() -> None:
    async with in_process(FakeEngine(max_rows=2), max_waiting_requests=0) as site:
        await site.complete(prompt=["a", "b"])
        await site.refused(429, prompt=["a", "b", "c"])


async def test_the_engine_s_own_count_is_heeded() -> None:
    """A full KV cache: few prompts in all, yet some wait."""
    engine = FakeEngine(step_s=0.002, max_rows=1)
    async with in_process(engine, max_waiting_requests=2) as site:
        tasks = [asyncio.create_task(site.complete(prompt="a", max_tokens=9)) for _ in range(3)]
        await eventually(lambda: engine.stats is not None and engine.stats.num_waiting == 2)
        engine.info = type(engine.info)(**{**_fields(engine.info), "max_rows": 100})
        await site.refused(429, prompt="a")
        await asyncio.gather(*tasks)


def _fields(struct: object) -> dict[str, object]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}  # type: ignore[attr-defined]


async def test_leaving_twice_does_no_harm() -> None:
    from engine.submission import Submission

    admission = AdmissionControl(FakeEngine(), 1)
    submission = Submission(1, 1)
    admission.enter(submission)
    admission.leave(submission)
    admission.leave(submission)
    assert admission.num_in_flight == 0
