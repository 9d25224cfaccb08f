"""Traces over the fake engine, sent to a collector in this process."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from engine.messages.step_output import Finish
from sampling.params import SamplingParams
from server.http.account import GenerationReport, RequestAccount
from server.http.traces import QUEUE, Traces, collector_url, parts_of
from tests.collector import Collector, attributes, collecting
from tests.fakes import FakeEngine, says
from tests.server.conftest import MODEL, Site, in_process
from tests.server.endpoints.chat.chats import TEMPLATE, chat

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
REPORT = GenerationReport(model="m", reply_id="r", num_prompt_tokens=3, num_cached=0)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine may need to send what waits."""
    monkeypatch.setattr("server.http.traces.FLUSH_S", 60.0)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@asynccontextmanager
async def traced(
    collector: Collector, engine: FakeEngine | None = None, **config: Any
) -> AsyncIterator[Site]:
    """A server in process whose traces have left when the context ends."""
    engine = engine or FakeEngine()
    engine.reports_times = True
    async with in_process(engine, otlp_traces_endpoint=collector.url, **config) as site:
        yield site
        assert site.context.traces is not None
        await asyncio.to_thread(site.context.traces.close)


def parts(collector: Collector, whole: Span) -> list[Span]:
    inside = [span for span in collector.spans if span.parent_span_id == whole.span_id]
    return sorted(inside, key=lambda span: span.start_time_unix_nano)


async def test_a_request_is_a_span_with_its_parts(collector: Collector) -> None:
    before = time.time_ns()
    async with traced(collector, FakeEngine(step_s=0.01)) as site:
        fields = {"max_tokens": 3, "n": 2, "seed": 7, "temperature": 0.5, "top_p": 0.9}
        reply = await site.complete(prompt="abcd", **fields)
    [whole] = collector.named(f"text_completion {MODEL}")
    assert collector.paths[0] == "/v1/traces"
    assert collector.resources[0]["service.name"] == "tailrace"
    assert whole.kind == Span.SPAN_KIND_SERVER
    assert not whole.parent_span_id
    reported = attributes(whole)
    wanted = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "tailrace",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.id": reply["id"],
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "tailrace.outcome": "success",
    }
    assert {name: reported.get(name) for name in wanted} == wanted
    queue, prefill, decode = parts(collector, whole)
    assert [span.name for span in (queue, prefill, decode)] == ["queue", "prefill", "decode"]
    stamps = [whole.start_time_unix_nano, queue.start_time_unix_nano]
    for part in (queue, prefill, decode):
        stamps += [part.end_time_unix_nano]
    assert stamps == sorted(stamps)
    assert queue.end_time_unix_nano == prefill.start_time_unix_nano
    assert prefill.end_time_unix_nano == decode.start_time_unix_nano
    assert decode.end_time_unix_nano == whole.end_time_unix_nano
    assert before <= stamps[0] < stamps[-1] <= time.time_ns()
    assert "abcd" not in str(collector.spans)


async def test_an_incoming_trace_is_gone_on_with(collector: Collector) -> None:
    async with traced(collector) as site:
        for flags, state in (("01", "vendor=x"), ("00", "")):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}", "tracestate": state}
            body = {"prompt": "a", "max_tokens": 1}
            reply = await site.client.post("/v1/completions", json=body, headers=headers)
            assert reply.status_code == 200
    [whole] = collector.named(f"text_completion {MODEL}")  # the other one was not sampled
    assert whole.trace_id.hex() == TRACE
    assert whole.parent_span_id.hex() == PARENT
    assert whole.trace_state == "vendor=x"
    assert len(collector.spans) == 4
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}


async def test_streams_chats_and_scores(collector: Collector) -> None:
    async with traced(collector, FakeEngine(says("hi")), chat_template=TEMPLATE) as site:
        await chat(site, max_tokens=5)
        await site.stream(prompt="ab", max_tokens=2, stream=True)
        body = {"query": "ab", "items": ["c"], "label_token_ids": [1, 2]}
        await site.client.post("/v1/score", json=body)
        await site.client.get("/v1/models")
    roots = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    names = sorted(span.name for span in roots)
    assert names == [f"chat {MODEL}", f"score {MODEL}", f"text_completion {MODEL}"]
    reported = {span.name: attributes(span) for span in roots}
    assert reported[f"chat {MODEL}"]["gen_ai.response.finish_reasons"] == ["stop"]
    assert reported[f"score {MODEL}"]["gen_ai.usage.input_tokens"] == 3
    assert "gen_ai.request.temperature" not in reported[f"score {MODEL}"]


async def test_refusals_and_failures(collector: Collector) -> None:
    failing = FakeEngine(lambda request, choice, position: Finish.NAN)
    async with traced(collector, failing) as site:
        await site.refused(prompt="a", temperature=-1)
        await site.refused(500, prompt="a", max_tokens=2)
    refused, failed = (s for s in collector.spans if s.kind == Span.SPAN_KIND_SERVER)
    reported = attributes(refused)
    assert (refused.name, reported["http.response.status_code"]) == ("text_completion", 400)
    assert (reported["tailrace.outcome"], refused.status.code) == (
        *("client_error", Status.STATUS_CODE_UNSET),
    )
    reported = attributes(failed)
    assert (reported["tailrace.outcome"], reported["error.type"]) == ("server_error", "500")
    assert failed.status.code == Status.STATUS_CODE_ERROR
    assert failed.status.message
    names = [part.name for part in parts(collector, failed)]
    assert names == ["queue", "prefill"], "nothing was drawn"


async def test_a_dead_collector_hurts_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.http.traces.FLUSH_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with in_process(otlp_traces_endpoint=f"http://127.0.0.1:{port}") as site:
        traces = site.context.traces
        assert traces is not None
        for _ in range(QUEUE + 10):
            traces.record(SCOPE, RequestAccount(status=200), "/v1/score", "success", 0.1)
        await site.complete(prompt="a", max_tokens=2)
        await asyncio.to_thread(traces.close)
        assert not traces._thread.is_alive()
    lines = [r for r in caplog.records if r.name.startswith("opentelemetry.exporter")]
    assert len(lines) <= 1, "reported once"


async def test_a_collector_that_never_answers_is_waited_for_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.http.traces.FLUSH_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with in_process(
            otlp_traces_endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}"
        ) as site:
            await site.complete(prompt="a", max_tokens=2)
            assert site.context.traces is not None
            began = time.monotonic()
            await asyncio.to_thread(site.context.traces.close)
            assert time.monotonic() - began < 8, "the exporter's own patience is 10 s"


def test_a_collector_that_refuses_is_told_of_once(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    def send(status: int, count: int) -> int:
        """Lines that so many refused batches are worth."""
        caplog.clear()
        collector.status = status
        for _ in range(count):
            traces.record(SCOPE, RequestAccount(status=200), "/v1/score", "success", 0.1)
            traces._send()
        return len([r for r in caplog.records if r.name.startswith("opentelemetry.exporter")])

    traces = Traces(collector.url)
    try:
        assert [send(404, 3), send(200, 1), send(400, 2)] == [1, 0, 1]
    finally:
        traces.close()


def test_what_waits_is_bounded_and_the_newest_stay(collector: Collector) -> None:
    traces = Traces(collector.url)
    for i in range(QUEUE + 3):
        account = RequestAccount(status=200, request_id=str(i))
        traces.record(SCOPE, account, "/v1/score", "success", 0.1)
        if i == 0:
            collector.wait(1)
    traces.close()
    ids = [int(attributes(span)["tailrace.request_id"]) for span in collector.spans]
    assert len(ids) == len(set(ids)) >= QUEUE
    assert max(ids) == QUEUE + 2


def test_a_request_without_a_trace_leaves_the_others_theirs(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    traces = Traces(collector.url)

    def broken() -> GenerationReport:
        raise RuntimeError("no report")

    wrong = replace(REPORT, queued_at="x")  # type: ignore[arg-type]
    for report in (broken, lambda: wrong, lambda: REPORT):
        traces.record(SCOPE, RequestAccount(report=report), "/v1/score", "success", 0.1)
    traces.close()
    reported = [record.message for record in caplog.records if record.name == "tailrace"]
    assert reported == ["a request has no trace"] * 2
    assert len(collector.spans) == 1


SCOPE: dict[str, Any] = {"method": "POST", "path": "/v1/score", "headers": []}


@pytest.mark.parametrize(
    ("stamps", "wanted"),
    [
        ((0.0, 0.0, 0.0), []),
        ((1.0, 0.0, 0.0), [("queue", 1.0, 9.0)]),
        ((1.0, 2.0, 0.0), [("queue", 1.0, 2.0), ("prefill", 2.0, 9.0)]),
        ((1.0, 2.0, 4.0), [("queue", 1.0, 2.0), ("prefill", 2.0, 4.0), ("decode", 4.0, 9.0)]),
    ],
)
def test_parts(stamps: tuple[float, ...], wanted: list[tuple[str, float, float]]) -> None:
    queued_at, started_at, drew_at = stamps
    report = GenerationReport(
        model="m",
        reply_id="r",
        num_prompt_tokens=1,
        num_cached=0,
        params=SamplingParams(),
        queued_at=queued_at,
        started_at=started_at,
        drew_at=drew_at,
    )
    assert list(parts_of(report, 9.0)) == wanted


def test_urls() -> None:
    assert collector_url("http://h:4318") == "http://h:4318/v1/traces"
    assert collector_url("https://h:4318/") == "https://h:4318/v1/traces"
    assert collector_url("http://h/own/path") == "http://h/own/path"
    for wrong in ("h:4318", "grpc://h:4317", "http://", "", "http://h:99999", "http://h:x"):
        with pytest.raises(ValueError, match="OTLP collector over HTTP"):
            collector_url(wrong)


def test_nothing_is_imported_where_no_traces_are_asked_for() -> None:
    """In a process of its own, which this one's tests have not made import it."""
    code = (
        "import sys; from tests.fakes import FakeEngine, byte_tokenizer;"
        "from server.app import create_app; from server.config import ServerConfig;"
        "create_app(FakeEngine(), byte_tokenizer(), ServerConfig(model_names=('m',)));"
        "from server.command import serve;"
        "names = ('opentelemetry.sdk', 'opentelemetry.exporter', 'server.http.traces');"
        "print([name for name in sys.modules if name.startswith(names)])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert run.stdout.strip() == "[]", run.stderr[-2000:]


def test_a_request_begins_no_later_than_its_parts(collector: Collector) -> None:
    """However long its thread was held up between counting its seconds and reading its end."""
    held_up = replace(REPORT, queued_at=time.monotonic() - 0.5)
    traces = Traces(collector.url)
    account = RequestAccount(report=lambda: held_up)
    traces.record(SCOPE, account, "/v1/score", "success", 0.1)
    traces.close()
    whole = next(span for span in collector.spans if not span.parent_span_id)
    assert whole.end_time_unix_nano - whole.start_time_unix_nano >= 0.5e9
