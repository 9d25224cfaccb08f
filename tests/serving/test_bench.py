"""`tailrace bench` at a real server, and beside a client that shares no code with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from benchmarks.bench_serving import CONCURRENCY, load, stream
from demo import MODEL_FOLDER
from server.bench.results import BenchResults, Point, read_results
from server.bench.workloads import Body, Lengths, make_workload, workload
from tests.server.bench.fake_server import fake_server
from tests.serving.process import free_port, serve

NOISE = 1.25
"""Between the best passes of two clients: a token takes 100 ms, and a busy machine wakes clients
and server some milliseconds late. On a machine that is not busy they differ by a percent."""


def bench(url: str, folder: Path, *flags: str) -> BenchResults:
    """What the command finds, as it is installed and typed."""
    output = folder / "bench.json"
    command = [sys.executable, "-m", "server.cli", "bench", "--base-url", url]
    done = subprocess.run(
        [*command, "--output", str(output), *flags],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return read_results(output)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_kind_of_workload(tmp_path: Path) -> None:
    flags = ("--num-requests", "12", "--output-tokens", "16", "--repeat", "1", "--rate", "20")
    names = "single,stream-lp,poisson,sampled,mixed,score,score-prefix,gscore,decisions"
    with serve() as server:
        found = bench(server.url, tmp_path, "--workloads", names, *flags)
        counted = server.metrics()
    points = {point.workload: point for point in found.points}
    assert list(points) == names.split(",")
    drawn = {name: round(tokens_of(point)) for name, point in points.items()}
    assert {name: drawn[name] for name in ("single", "poisson", "mixed")} == dict.fromkeys(
        ("single", "poisson", "mixed"), 12 * 16
    )
    generated = 'tailrace_generation_tokens_total{engine="0",model_name="tailrace-demo"}'
    assert counted[generated] == sum(drawn.values())
    assert points["stream-lp"].figures["first_token_p50_s"] > 0.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_peer_that_takes_texts_alone(tmp_path: Path) -> None:
    """`transformers serve` has no ids as prompts, and refuses fields that it does not know."""
    pytest.importorskip("accelerate")
    port = free_port()
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(MODEL_FOLDER)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    peer = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, peer)
        flags = ("--text-prompts", "--omit-fields", "ignore_eos,min_tokens")
        lengths = ("--num-requests", "2", "--input-tokens", "8", "--output-tokens", "4")
        named = ("--model", str(MODEL_FOLDER), "--repeat", "1", "--workloads", "chat")
        (point,) = bench(url, tmp_path, *flags, *lengths, *named).points
    finally:
        peer.kill()
        peer.wait()
    assert point.errors == {}
    assert 2 <= round(tokens_of(point)) <= 8
    assert point.figures["input_tokens_per_s"] > 0.0


def wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while True:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.5)


def tokens_of(point: Point) -> float:
    """Output tokens of the best pass."""
    return point.figures["output_tokens_per_s"] * point.figures["seconds"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_another_client_finds_the_same(tmp_path: Path) -> None:
    """Of a server that a timer paces, so that what else the machine does counts for little."""
    names = ("output_tokens_per_s", "latency_p50_s", "first_token_p50_s", "token_p50_s")
    ours: dict[str, list[float]] = {name: [] for name in names}
    theirs: dict[str, list[float]] = {name: [] for name in names}
    lengths = Lengths(size=16, output=16)
    flags = ("--num-requests", "16", "--output-tokens", "16", "--repeat", "1")
    with fake_server(token_s=0.1) as fake:
        for _ in range(3):
            plain, streamed = bench(fake.url, tmp_path, "--workloads", "chat,stream", *flags).points
            whole = asyncio.run(
                load(fake.url, make_workload("chat", 8000, 0, lengths), CONCURRENCY)
            )
            each = asyncio.run(stream(fake.url, bodies_of("stream", lengths)))
            for name in names:
                of_streams = name.startswith(("first_token", "token"))
                ours[name].append((streamed if of_streams else plain).figures[name])
                theirs[name].append((each if of_streams else whole)[name])
    for name in names:
        best = max if name == "output_tokens_per_s" else min
        ratio = best(ours[name]) / best(theirs[name])
        assert 1.0 / NOISE < ratio < NOISE, (name, ours[name], theirs[name])


def bodies_of(name: str, lengths: Lengths) -> list[Body]:
    return workload(name, 8000, 0, lengths).bodies
