"""A request at the engine: submitted in slices, read, aborted at no cost, accounted for once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from engine.messages.step_output import Finish
from server.endpoints.completions.schema import CompletionRequest
from server.endpoints.completions.spec import completion_spec
from server.errors import ApiError
from server.generation.generation import SUBMIT_SLICE, Generation
from server.generation.prepare import prepare
from server.schema.base import validate
from tests.fakes import EOS, FakeEngine, says
from tests.server.conftest import Site, eventually, in_process
from tests.server.slowness import slowness
from tests.server.waits import Turns


async def generation_of(site: Site, **body: Any) -> Generation:
    context = site.context
    wanted = validate(CompletionRequest, {"prompt": "ab", **body})
    prepared = await prepare(await completion_spec(wanted, context, "cmpl-x"), context)
    return Generation(prepared)


async def finish(generation: Generation) -> None:
    while await generation.update():
        pass


async def run(generation: Generation) -> None:
    with generation:
        await generation.submit()
        await finish(generation)


def ended(site: Site, reason: str) -> float:
    return site.metric("tailrace_request_success_total", finished_reason=reason)


async def test_from_submission_to_the_end(site: Site) -> None:
    generation = await generation_of(site, prompt=["ab", "cde"], n=2, max_tokens=3)
    with generation:
        await generation.submit()
        assert [request.n for request in site.engine.requests] == [2, 2]
        assert [request.num_before for request in site.engine.requests] == [0, 2]
        assert site.context.admission.num_in_flight == 4
        await finish(generation)
        assert generation.ended
        assert await generation.update() == []
    assert [(c.index, c.prompt_idx) for c in generation.choices] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert generation.tally.usage() == {
        "prompt_tokens": 5,
        "completion_tokens": 12,
        "total_tokens": 17,
    }
    assert site.context.admission.num_in_flight == 0
    assert site.engine.aborted == []
    assert ended(site, "length") == 4
    assert ended(site, "error") == 0
    assert site.metric("tailrace_generation_tokens_total") == 12


async def test_times_are_the_earliest_of_all_choices(site: Site) -> None:
    """Choices are read in any order; 0 is a time that did not come yet."""
    generation = await generation_of(site)
    for times in ([5.0, 0.0, 0.0], [4.0, 7.0, 0.0], [6.0, 6.0, 9.0], [4.5, 8.0, 0.0]):
        generation.tally.note_times(times)
    report = generation.tally.report()
    assert (report.queued_at, report.started_at, report.drew_at) == (4.0, 6.0, 9.0)


async def test_a_full_queue_sends_nothing_and_counts_nothing() -> None:
    async with in_process(FakeEngine(max_rows=2), max_waiting_requests=1) as site:
        generation = await generation_of(site, n=4)
        with pytest.raises(ApiError, match="too many choices"), generation:
            await generation.submit()
        assert site.engine.requests == []
        assert site.context.admission.num_in_flight == 0
        assert ended(site, "error") == 0


@pytest.mark.parametrize("error", [asyncio.CancelledError, RuntimeError])
async def test_leaving_early_aborts_each_request_once(error: type[BaseException]) -> None:
    async with in_process(FakeEngine(step_s=0.002)) as site:
        aborts: list[tuple[int, int]] = []
        abort = site.engine.abort

        def noting(handle: int, choice: int = -1) -> None:
            aborts.append((handle, choice))
            abort(handle, choice)

        site.engine.abort = noting  # type: ignore[method-assign]
        generation = await generation_of(site, prompt=["a", "b"], n=3, max_tokens=200)

        async def leave() -> None:
            with generation:
                await generation.submit()
                await generation.update()
                raise error

        with pytest.raises(error):
            await leave()
        assert aborts == [(1, -1), (2, -1)]
        await eventually(lambda: site.engine.idle)
        assert site.context.admission.num_in_flight == 0
        reason = "abort" if error is asyncio.CancelledError else "error"
        assert ended(site, reason) == 6
        generation.close("error")  # again
        assert site.context.admission.num_in_flight == 0
        assert site.metric("tailrace_e2e_request_latency_seconds_count") == 1


async def test_a_stop_string_ends_one_choice_at_the_engine() -> None:
    engine = FakeEngine(lambda _request, choice, _position: 97 + choice, step_s=0.001)
    async with in_process(engine) as site:
        generation = await generation_of(site, n=2, stop="b", max_tokens=40)
        with generation:
            await generation.submit()
            await finish(generation)
    assert site.engine.aborted == [(1, 1)]
    assert [choice.stop_reason for choice in generation.choices] == [None, "b"]
    assert (ended(site, "stop"), ended(site, "length")) == (1, 1)


async def test_one_failed_choice_fails_the_request() -> None:
    def script(_request: object, choice: int, position: int) -> int | Finish:
        return Finish.NAN if choice == 1 and position == 2 else 97

    async with in_process(FakeEngine(script)) as site:
        generation = await generation_of(site, n=2, max_tokens=200)
        with pytest.raises(ApiError) as caught:
            await run(generation)
        assert caught.value.code == "nan_logits"
        await eventually(lambda: site.engine.idle)
        assert site.engine.aborted == [(1, 0)]
        assert ended(site, "error") == 2


async def test_a_dead_engine_is_told_to_the_reader_and_to_who_submits() -> None:
    async with in_process(FakeEngine(step_s=0.01)) as site:
        generation = await generation_of(site, max_tokens=200)
        running = asyncio.create_task(run(generation))
        await eventually(lambda: bool(site.engine.requests))
        site.engine.die("killed by a test")
        with pytest.raises(ApiError, match="by a test") as caught:
            await running
        assert caught.value.code == "engine_dead"
        with pytest.raises(ApiError, match="by a test"):
            await run(await generation_of(site))
        assert site.context.admission.num_in_flight == 0


async def test_cached_tokens_and_drafts_are_told_where_there_are_any(site: Site) -> None:
    async with in_process(prompt_tokens_details=True) as reported:
        generation = await generation_of(reported, prompt=["abcd", "ab"], max_tokens=1)
        with generation:
            await generation.submit()
            await finish(generation)
        assert generation.tally.num_cached == [2, 1]
        assert generation.tally.usage()["prompt_tokens_details"] == {"cached_tokens": 3}
        assert generation.tally.draft_metrics() is None


async def test_a_prompt_of_one_token_asks_for_no_prompt_logprobs(site: Site) -> None:
    generation = await generation_of(site, prompt=["a", "ab"], prompt_logprobs=1)
    with generation:
        await generation.submit()
        await finish(generation)
    assert [request.prompt_logprobs is None for request in site.engine.requests] == [True, False]


class TestManyChoices:
    async def test_others_go_on_while_prompts_are_submitted(self) -> None:
        async with in_process() as site:
            generation = await generation_of(site, prompt=["a"] * 10 * SUBMIT_SLICE)
            with generation, Turns() as turns:
                await generation.submit()
                assert turns.count >= 8  # nine pauses, of which the first starts the task

    async def test_all_are_counted_before_the_first_is_sent(self) -> None:
        async with in_process(FakeEngine(max_rows=2), max_waiting_requests=200) as site:
            generation = await generation_of(site, prompt=["a"] * 2 * SUBMIT_SLICE, n=3)
            with generation:
                submitting = asyncio.create_task(generation.submit())
                await asyncio.sleep(0)
                assert len(site.engine.requests) == SUBMIT_SLICE
                assert site.context.admission.num_in_flight == 6 * SUBMIT_SLICE
                await site.refused(429, prompt=["a"] * 50)
                await submitting

    async def test_choices_are_made_when_they_are_heard_of(self) -> None:
        async with in_process(FakeEngine(says("hi"), max_rows=2)) as site:
            generation = await generation_of(site, n=1024)
            with generation:
                await generation.submit()
                assert generation.choices == []
                await generation.update()
                assert len(generation.choices) <= 4
            assert ended(site, "error") + ended(site, "stop") == 1024

    async def test_leaving_costs_little(self) -> None:
        """4,096 choices at the bound, of which none was heard of: 20 ms on an idle core.

        The best of some attempts, since a collection of garbage in one is not ours.
        """
        taken = []
        for _ in range(3):
            async with in_process() as site:
                generation = await generation_of(site, prompt=["a"] * 1024, n=4)
                site.engine.abort = lambda handle, choice=-1: None  # type: ignore[method-assign]
                await generation.submit()
                began = time.thread_time()
                generation.close("abort")
                taken.append(time.thread_time() - began)
                assert ended(site, "abort") == 4096
                assert site.context.admission.num_in_flight == 0
        assert min(taken) < 0.1 * slowness(), taken


async def test_eos_ends_a_choice_for_good() -> None:
    """What the engine reports of an ended choice is passed over."""
    async with in_process(FakeEngine(lambda *_: EOS)) as site:
        generation = await generation_of(site)
        with generation:
            await generation.submit()
            (choice,) = await generation.update()
            assert (choice.finish_reason, choice.num_generated) == ("stop", 1)
