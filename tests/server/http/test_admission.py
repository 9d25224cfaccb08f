"""The queue's limit: counted in prompts, answered early, let go at the end."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from engine.submission import EngineDeadError, Submission
from server.errors import ApiError
from server.fronts import FrontTable
from server.http.admission import AdmissionControl
from tests.fakes import EOS, FakeEngine
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
        assert len((await site.complete(prompt=["a", "b"]))["choices"]) == 2
        await site.refused(429, prompt=["a", "b", "c"])
        assert len(site.engine.requests) == 2, "of three none went in"


async def test_the_engine_s_own_count_is_heeded() -> None:
    """A full KV cache: few prompts in all, yet some wait."""
    engine = FakeEngine(step_s=0.002, max_rows=1)
    async with in_process(engine, max_waiting_requests=2) as site:
        tasks = [asyncio.create_task(site.complete(prompt="a", max_tokens=9)) for _ in range(3)]
        await eventually(lambda: engine.stats is not None and engine.stats.num_waiting == 2)
        engine.info = structs.replace(engine.info, max_rows=100)
        await site.refused(429, prompt="a")
        await asyncio.gather(*tasks)


async def test_what_an_idle_engine_said_last_is_not_heeded() -> None:
    """Its last statistics may tell of choices that waited: nothing comes after them."""
    engine = FakeEngine(max_rows=2)
    async with in_process(engine, max_waiting_requests=2) as site:
        await site.complete(prompt="a")
        assert engine.stats is not None
        engine.stats = structs.replace(engine.stats, num_waiting=9)
        await site.complete(prompt="a")


async def test_each_choice_of_a_prompt_counts() -> None:
    async with in_process(FakeEngine(max_rows=2), max_waiting_requests=2) as site:
        await site.complete(prompt="a", n=4, max_tokens=1)
        await site.complete(prompt=["a", "b"], n=2, max_tokens=1)
        error = await site.refused(429, prompt="a", n=5)
        assert "too many choices are waiting: with this request 3" in error["message"]
        await site.refused(429, prompt=["a", "b"], n=3)
        assert len(site.engine.requests) == 3
        assert site.context.admission.num_in_flight == 0


async def test_choices_that_ended_make_room_for_others() -> None:
    """Three of four have ended, the fourth goes on: three more may come in."""
    engine = FakeEngine(
        lambda request, choice, _: 97 if choice or len(request.prompt_token_ids) > 1 else EOS,
        step_s=0.002,
        max_rows=4,
    )
    async with in_process(engine, max_waiting_requests=0) as site:
        long = asyncio.create_task(site.complete(prompt=["a", "b", "c", "dd"], max_tokens=200))
        await eventually(lambda: site.context.admission.num_in_flight == 1)
        await site.refused(429, prompt=["a"] * 4)
        counted = (await site.client.get("/metrics")).text
        [turned_away] = [
            line for line in counted.splitlines() if "admission_rejections_total{" in line
        ]
        assert turned_away.endswith(" 1.0")
        await site.complete(prompt=["a"] * 3)
        await long
        assert site.context.admission.num_in_flight == 0


async def test_what_was_admitted_is_released() -> None:
    admission = AdmissionControl(FakeEngine(max_rows=2), 1, FrontTable())
    admission.admit(2)
    admission.admit(1)
    with pytest.raises(ApiError):
        admission.admit(1)
    assert admission.num_in_flight == 3
    admission.release(2)
    admission.admit(2)


async def test_leaving_twice_does_no_harm() -> None:
    admission = AdmissionControl(FakeEngine(), 1, FrontTable())
    submission = Submission(1, 1)
    admission.enter(submission)
    admission.leave(submission)
    admission.leave(submission)
    admission.fail_all(EngineDeadError("gone"))
    assert submission.take() == [], "nobody hears who has left"


async def test_who_is_there_when_the_engine_fails_hears_of_it() -> None:
    admission = AdmissionControl(FakeEngine(), 1, FrontTable())
    submissions = [Submission(handle, 1) for handle in (1, 2)]
    for submission in submissions:
        admission.enter(submission)
    admission.fail_all(EngineDeadError("gone"))
    for submission in submissions:
        with pytest.raises(EngineDeadError, match="gone"):
            submission.take()
