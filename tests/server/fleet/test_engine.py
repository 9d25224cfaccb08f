"""A server over several replicas: the same replies, retries, aborts, refusals, sums."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec.structs import replace

from engine.messages.request import Request
from engine.messages.step_output import Finish
from engine.submission import EngineDeadError, Submission
from sampling.params import SamplingParams
from server.fleet.engine import FleetEngine
from server.fleet.prefixes import BLOCK_TOKENS
from tests.fakes import FakeEngine
from tests.server.conftest import MODEL, chunks_of, error_of, eventually, in_process
from tests.server.fleet.site import NAMES, FleetSite, fleet_site


@pytest.fixture
async def site() -> AsyncIterator[FleetSite]:
    async with fleet_site() as made:
        yield made


def plain(reply: httpx.Response) -> Any:
    """A reply's content without what differs by request."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        events: Any = chunks_of(reply.text)
        for event in events:
            event.update(id="", created=0)
        return events
    body = reply.json()
    return body | {"id": "", "created": 0} if "id" in body else body


ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "several choices": ("/v1/completions", {"prompt": "hello", "n": 3, "max_tokens": 4}),
    "several prompts": ("/v1/completions", {"prompt": ["one", "two", "three"], "max_tokens": 3}),
    "a stop string": ("/v1/completions", {"prompt": "abcdef", "stop": "d", "n": 2}),
    "logprobs": (
        "/v1/completions",
        {
            **{"prompt": "hello", "logprobs": 2, "logprob_token_ids": [1, 2], "max_tokens": 40},
            **{"kept_logprob": True, "return_token_ids": True, "return_token_origin": True},
        },
    ),
    "logprobs of the prompt": (
        "/v1/completions",
        {"prompt": "hello", "prompt_logprobs": 1, "echo": True, "logprobs": 1, "n": 2},
    ),
    "a stream": (
        "/v1/completions",
        {**{"prompt": "hello", "stream": True, "logprobs": 1, "max_tokens": 5}},
    ),
    "labels": (
        "/v1/score",
        {"query": "is it", "items": ["so", "not"], "label_token_ids": [1, 2]},
    ),
    "a refusal": ("/v1/completions", {"prompt": "x", "max_tokens": -1}),
}


@pytest.mark.parametrize("asked", ASKED)
async def test_replies_are_those_of_one_engine(site: FleetSite, asked: str) -> None:
    path, body = ASKED[asked]
    engine = FakeEngine()
    engine.speculates = True
    async with in_process(engine) as one:
        expected = await one.client.post(path, json={"model": MODEL, **body})
    reply = await site.post(path, **body)
    assert reply.status_code == expected.status_code, reply.text
    assert plain(reply) == plain(expected)
    assert reply.headers.keys() == expected.headers.keys()


async def test_prompts_with_a_common_beginning_go_to_one_replica(site: FleetSite) -> None:
    for group in "xyz":
        for i in range(4):
            await site.post(prompt=group * BLOCK_TOKENS + str(i), max_tokens=1)
    homes = [set(site.replicas.sent[4 * i : 4 * i + 4]) for i in range(3)]
    assert [len(home) for home in homes] == [1, 1, 1]


async def test_a_prompt_is_tokenised_once_and_ids_are_sent(site: FleetSite) -> None:
    await site.post(prompt="hello", max_tokens=1)
    engine = site.engines[site.replicas.sent[0]]
    assert engine.requests[0].prompt_token_ids.tolist() == list(b"hello")


# -- replicas that die ------------------------------------------------------------------------


async def test_what_has_sent_no_byte_is_done_elsewhere() -> None:
    async with fleet_site(step_s=0.01) as site:
        posts = [
            asyncio.create_task(site.post(prompt=f"{i} hello", max_tokens=40, stream=False))
            for i in range(12)
        ]
        await eventually(lambda: len(site.replicas.sent) == 12)
        await asyncio.sleep(0.05)
        site.replicas.dead.add("a")
        replies = await asyncio.gather(*posts)
        assert [reply.status_code for reply in replies] == [200] * 12
        texts = [reply.json()["choices"][0]["text"] for reply in replies]
        assert [text[:7] for text in texts] == [f"{i} hello"[:7] for i in range(12)]
        retried = len(site.replicas.sent) - 12
        assert 0 < retried == site.replicas.sent[:12].count("a")
        registry = site.context.metrics.registry
        labels = {"model_name": MODEL, "engine": "0"}

        def counted(name: str, **more: str) -> float | None:
            return registry.get_sample_value(name, labels | more)

        assert counted("tailrace_requests_received_total") == 12
        assert counted("tailrace_request_outcomes_total", outcome="success") == 12


async def test_a_stream_that_has_begun_gets_one_error() -> None:
    async with fleet_site(step_s=0.01) as site:
        asked = {"model": MODEL, "prompt": "hello", "max_tokens": 100, "stream": True}
        post = asyncio.create_task(site.client.post("/v1/completions", json=asked))
        await eventually(lambda: site.context.engine.stats is not None or bool(site.replicas.sent))
        await asyncio.sleep(0.2)
        site.replicas.dead.add(site.replicas.sent[0])
        reply = await post
        assert len(site.replicas.sent) == 1, "it is not done again"
        events = reply.text.split("\n\n")
        errors = [json.loads(e.removeprefix("data: ")) for e in events if '"error"' in e]
        assert [each["error"]["code"] for each in errors] == ["replica_lost"]
        assert events[-2:] == ["data: [DONE]", ""]


async def test_after_three_tries_the_error_is_told(
    site: FleetSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.replicas.dead.update(NAMES[:2])

    async def lost(raw: bytes, *rest: Any) -> AsyncIterator[bytes]:
        site.replicas.sent.append("c")
        if raw:
            raise ConnectionResetError("again")
        yield raw

    monkeypatch.setattr(site.replicas, "work", lost)
    reply = await site.post(prompt="hello")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert error_of(reply)["code"] == "replica_lost"
    assert len(site.replicas.sent) == 3


async def test_other_errors_are_not_tried_again(site: FleetSite) -> None:
    for engine in site.engines.values():
        engine.script = lambda request, choice, position: Finish.NAN
    reply = await site.post(prompt="hello")
    assert error_of(reply)["code"] == "nan_logits"
    assert len(site.replicas.sent) == 1


async def test_a_large_body_is_received_again(
    site: FleetSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces are kept until the reply begins."""
    first: list[str] = []
    work = site.replicas.work

    async def once(raw: bytes, *rest: Any) -> AsyncIterator[bytes]:
        if not first:
            first.append("lost")
            raise ConnectionResetError("once")
        async for message in work(raw, *rest):
            yield message

    monkeypatch.setattr(site.replicas, "work", once)
    raw = json.dumps({"model": MODEL, "prompt": "hello", "max_tokens": 2, "user": "u" * 90_000})

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), 20_000):
            yield raw[start : start + 20_000].encode()

    headers = {"content-type": "application/json"}
    reply = await site.client.post("/v1/completions", content=pieces(), headers=headers)
    assert (reply.status_code, first) == (200, ["lost"]), reply.text
    assert reply.json()["choices"][0]["text"] == "he"


# -- aborts -----------------------------------------------------------------------------------


def request(fleet: FleetEngine, n: int = 1, **fields: Any) -> Request:
    prompt = np.arange(8, dtype=np.int32)
    fields = {"max_tokens": 200, "params": SamplingParams(), **fields}
    return Request(handle=fleet.new_handle(), prompt_token_ids=prompt, n=n, **fields)


async def ends(submission: Submission) -> dict[int, Finish]:
    found: dict[int, Finish] = {}
    async for entries in submission:
        found |= {entry.choice: entry.finish for entry in entries if entry.finish}
    return found


async def test_one_choice_is_ended_where_it_runs() -> None:
    async with fleet_site(step_s=0.005) as site:
        submission = site.fleet.submit(request(site.fleet, n=2, max_tokens=60))
        await anext(submission)
        site.fleet.abort(submission.handle, 1)
        assert await ends(submission) == {0: Finish.LENGTH, 1: Finish.ABORT}
        assert site.replicas.aborts == [(site.replicas.sent[0], 1)]


@pytest.mark.parametrize("choice", [-1, 0])
async def test_an_abort_before_a_replica_has_answered(choice: int) -> None:
    async with fleet_site(step_s=0.005) as site:
        submission = site.fleet.submit(request(site.fleet))
        site.fleet.abort(submission.handle, choice)
        assert await ends(submission) == {0: Finish.ABORT}
        await eventually(lambda: all(engine.idle for engine in site.engines.values()))


async def test_a_replica_is_told_when_its_reader_leaves() -> None:
    async with fleet_site(step_s=0.005) as site:
        post = asyncio.create_task(site.post(prompt="hello", max_tokens=200))
        await eventually(lambda: any(not engine.idle for engine in site.engines.values()))
        post.cancel()
        await eventually(lambda: all(engine.idle for engine in site.engines.values()))
        await eventually(lambda: not site.fleet._calls)


# -- what replicas report ---------------------------------------------------------------------


async def test_what_replicas_hold_is_added_up(site: FleetSite) -> None:
    one = FakeEngine().info
    assert site.fleet.info.max_rows == 3 * one.max_rows
    assert site.fleet.info.num_blocks == 3 * one.num_blocks
    assert site.fleet.info.max_model_len == one.max_model_len


async def test_counters_never_fall(site: FleetSite) -> None:
    for i in range(9):
        await site.post(prompt=f"{i}", max_tokens=3)
    site.fleet._take(await site.replicas.reports())
    assert site.fleet.stats is not None
    before = site.fleet.stats.num_steps
    assert before == sum(engine._num_steps for engine in site.engines.values()) > 0
    for gone in ({"a"}, {"a", "b"}, set(), {"b"}, set()):
        site.replicas.silent = set(gone)
        site.fleet._take(await site.replicas.reports())
        assert site.fleet.stats.num_steps == before, gone


async def test_many_replicas_come_and_go_without_being_remembered(site: FleetSite) -> None:
    await site.post(prompt="hello", max_tokens=3)
    (report,) = [r for r in await site.replicas.reports() if r.stats is not None]
    for i in range(40):
        site.fleet._take([replace(report, replica=f"r{i}")])
    assert report.stats is not None
    assert site.fleet.stats is not None
    assert len(site.fleet._absent) == 16
    assert site.fleet.stats.num_steps == 40 * report.stats.num_steps
    assert site.fleet.stats.kv_blocks_total == report.stats.kv_blocks_total


async def test_a_replica_of_another_model_is_refused_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fleet_site({"b": "another", "c": "another"}) as site:
        assert site.fleet.info.max_rows == FakeEngine().info.max_rows
        assert "replica b serves models/b (another), this server a-model" in caplog.text
        site.replicas.dead.add("a")
        submission = site.fleet.submit(request(site.fleet))
        with pytest.raises(EngineDeadError, match=r"replica [bc] serves models/[bc]"):
            await ends(submission)


async def test_health_follows_the_reports(site: FleetSite, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await site.client.get("/health")).status_code == 200
    monkeypatch.setattr("server.fleet.engine.SILENCE_S", -1.0)
    reply = await site.client.get("/health")
    assert (reply.status_code, "no replica" in reply.text) == (503, True)


async def test_seeds_are_one_sequence_whatever_the_replica() -> None:
    drawn = []
    for _ in range(2):
        async with fleet_site(seed=5) as site:
            for i in range(6):
                await site.post(prompt=f"{i}", max_tokens=1)
            requests = [r for engine in site.engines.values() for r in engine.requests]
            seeds = {bytes(r.prompt_token_ids.tolist()): r.params.seed for r in requests}
            drawn.append(seeds)
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0].values())) == 6
