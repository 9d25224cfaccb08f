"""Passes over real processes and sockets, against a server that counts."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from server.bench.load import LoadProgress
from server.bench.measure import BenchConfig, measure
from server.bench.results import BenchResults, Point
from server.bench.target import parse_target
from server.bench.workloads import Lengths
from tests.server.bench.fake_server import MODEL, FakeServer, fake_server


def run(fake: FakeServer, **fields: Any) -> tuple[BenchResults, list[LoadProgress]]:
    """Results, and what the display was sent."""
    shown: list[LoadProgress] = []
    reported: list[Point] = []
    given: dict[str, Any] = {
        "workloads": ["stream"],
        "concurrencies": [1024],
        "rate": 1000.0,
        "repeat": 1,
        "processes": 2,
        "seed": 1,
        "vocab_size": 8000,
        "lengths": Lengths(size=12, output=3),
        "omit_fields": [],
        "timeout_s": 60.0,
    }
    config = BenchConfig(target=parse_target(fake.url, key=None), model=MODEL, **(given | fields))
    results = measure(config, lambda _, progress, __: shown.append(progress), reported.append)
    assert results.points == reported
    return results, shown


def test_every_request_is_sent_once_by_two_processes() -> None:
    with fake_server(token_s=0.002) as fake:
        results, shown = run(
            fake, workloads=["stream", "poisson", "gscore"], concurrencies=[1, 5], repeat=2
        )
        prompts = [tuple(body["prompt"]) for body in fake.bodies if "prompt" in body]
        assert len(set(prompts)) == len(prompts) == 12 * 2 * 3
        assert {body["model"] for body in fake.bodies} == {MODEL}
        assert fake.paths["/generative_scoring"] == 2
    names = [(point.workload, point.where, point.num_requests) for point in results.points]
    assert names == [
        ("stream", "1", 12),
        ("stream", "5", 12),
        ("poisson", "1000/s", 12),
        ("gscore", "1", 1),
    ]
    for point in results.points:
        assert not point.errors
        assert len(point.passes) == 2
        found = point.figures
        done = found["requests_per_s"] * found["seconds"]
        assert done == pytest.approx(12)  # gscore's items count
        if point.workload != "gscore":
            assert found["output_tokens_per_s"] * found["seconds"] == pytest.approx(36)
            assert found["token_p50_s"] > 0.0015  # what the server paces
            assert len(point.curves["gap_counts"]) > 0
        else:
            assert found["input_tokens_per_s"] * found["seconds"] == pytest.approx(12 * 32 + 1024)
    assert shown[-1].done <= 12


def test_concurrency_is_kept_to() -> None:
    with fake_server(token_s=0.005) as fake:
        run(fake, concurrencies=[3], lengths=Lengths(size=9, output=2))
        assert fake.most_at_once == 3
        assert fake.num_connections == 3


def test_the_pass_with_the_fewest_errors_counts() -> None:
    with fake_server(breaks=("event", 13)) as fake:
        results, _ = run(fake, repeat=2, concurrencies=[1])
    (point,) = results.points
    assert point.errors == {"in the stream: it broke": 1}
    assert (point.best, [len(each.errors) for each in point.passes]) == (0, [0, 1])


def test_nothing_but_failures() -> None:
    with fake_server(refuses=503) as fake:
        results, shown = run(fake)
    (point,) = results.points
    assert point.errors == {"503: not today": 12}
    assert set(point.figures) == {"seconds", "client_busy"}
    assert shown[0].failed == 0


@pytest.mark.slow
def test_client_processes_end_with_their_parent() -> None:
    """Within a report, even where the parent could not say so."""
    with fake_server(token_s=60.0) as fake:
        command = [sys.executable, "-m", "server.cli", "bench", "--base-url", fake.url]
        process = subprocess.Popen([*command, "--num-requests", "2"], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not fake.bodies:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(children, timeout=60)
        assert len(children) >= 2
        assert alive == []


def test_fields_are_left_out() -> None:
    with fake_server() as fake:
        run(fake, omit_fields=["min_tokens", "ignore_eos"])
        assert not any({"min_tokens", "ignore_eos"} & set(body) for body in fake.bodies)


def test_prompts_are_sent_as_words() -> None:
    with fake_server() as fake:
        run(fake, workloads=["stream", "gscore"], text_prompts=True)
        streamed = [body for body in fake.bodies if "prompt" in body]
        (scored,) = [body for body in fake.bodies if "query" in body]
    prompts = {body["prompt"] for body in streamed}
    assert len(prompts) == len(streamed) == 12
    assert {len(prompt.split()) for prompt in prompts} == {64}
    assert all(isinstance(item, str) for item in scored["items"])
    assert scored["label_token_ids"] == [5000, 6000]
