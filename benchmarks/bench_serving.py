"""Throughput and latency of a server over HTTP, beside transformers' generate in the same run.

    python -m benchmarks.bench_serving --workloads chat            # starts its own server
    python -m benchmarks.bench_serving --base-url URL --model NAME --vocab-size 151936

Output is counted from each reply's usage. The best of `--repeat` passes counts, each pass on
fresh prompts. `single` and `poisson` are streamed; the latter arrives at 70 % of the rate at which
the server gets through it all at once. Prints a line a workload; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import aiohttp

from benchmarks.shapes import LAYERS
from demo import MODEL_FOLDER
from server.bench.workloads import Body, make_workload

CONCURRENCY = 1024
SHARE = 0.7
"""The share of the saturated rate at which `poisson` arrives."""

Result = dict[str, float]


@contextlib.contextmanager
def serving(model: str, *flags: str, ready_timeout_s: float = 300.0) -> Iterator[str]:
    """A server of our own on a free port, with nothing left to build; gives its base URL.

    With `--no-wait-for-kernels` it may be building still. Its compilers end when it does.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "server.cli", "serve", model, "--port", str(port)]
    if LAYERS:  # others are made ready on the same GPU
        flags = (*flags, "--num-gpu-blocks-override", "4096")
    server = subprocess.Popen([*command, "--wait-for-kernels", *flags], start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + ready_timeout_s
        while not _ready(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not become ready")
            time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


async def measure(url: str, name: str, vocab_size: int, attempt: int) -> Result:
    """Measure one pass of a workload."""
    bodies = make_workload(name, vocab_size, attempt)
    if name == "single":
        return await stream(url, bodies)
    if name == "poisson":
        at_once = await stream(url, make_workload(name, vocab_size, attempt + 1000))
        rate = SHARE * at_once["requests_per_s"]
        return await stream(url, bodies, rate) | {"arrivals_per_s": round(rate, 1)}
    return await load(url, bodies, CONCURRENCY)


async def load(url: str, bodies: list[Body], concurrency: int) -> Result:
    """Send all bodies, `concurrency` at once; tokens and requests a second, latencies in s."""
    limit = asyncio.Semaphore(concurrency)
    async with _session() as session:
        started = time.perf_counter()
        replies = await asyncio.gather(*(_count(session, url, body, limit) for body in bodies))
        seconds = time.perf_counter() - started
    latencies = sorted(latency for latency, _ in replies)
    return {
        "seconds": round(seconds, 3),
        "requests_per_s": round(len(bodies) / seconds, 2),
        "output_tokens_per_s": round(sum(tokens for _, tokens in replies) / seconds, 1),
        "latency_p50_s": round(latencies[len(latencies) // 2], 4),
        "latency_p99_s": round(latencies[int(len(latencies) * 0.99)], 4),
    }


async def _send(
    session: aiohttp.ClientSession, url: str, body: Body, limit: asyncio.Semaphore
) -> tuple[float, str]:
    """Send one body: the seconds until its reply, and the reply."""
    async with limit:
        started = time.perf_counter()
        async with session.post(f"{url}/v1/completions", json=body) as reply:
            text = await reply.text()
            if reply.status != 200:
                raise RuntimeError(f"{reply.status}: {text[:300]}")
        return time.perf_counter() - started, text


async def _count(
    session: aiohttp.ClientSession, url: str, body: Body, limit: asyncio.Semaphore
) -> tuple[float, int]:
    """Send one body: the seconds it took and the tokens of the reply, parsed as a client would."""
    seconds, text = await _send(session, url, body, limit)
    return seconds, int(json.loads(text)["usage"]["completion_tokens"])


async def complete(url: str, bodies: list[Body]) -> list[dict[str, Any]]:
    """The replies to all bodies, sent at once."""
    limit = asyncio.Semaphore(len(bodies))
    async with _session() as session:
        sent = await asyncio.gather(*(_send(session, url, body, limit) for body in bodies))
    return [json.loads(text) for _, text in sent]


async def stream(url: str, bodies: list[Body], rate: float | None = None) -> Result:
    """Stream all bodies, `rate` arriving a second at random intervals, or all at once.

    Returns:
        Seconds until the first token, a token after it (mean of a stream), and the longest wait
        between two chunks of a stream; each its median and 99th percentile over streams.
    """
    intervals = random.Random(0)
    gc.collect()
    gc.freeze()  # a collection here would look like a stall there
    async with _session() as session:
        started = time.perf_counter()
        tasks = []
        for body in bodies:
            tasks.append(asyncio.create_task(_stream(session, url, body)))
            await asyncio.sleep(intervals.expovariate(rate) if rate else 0)
        streams = await asyncio.gather(*tasks)
        seconds = time.perf_counter() - started
    result = {"seconds": round(seconds, 3), "requests_per_s": round(len(bodies) / seconds, 2)}
    for i, name in enumerate(("first_token", "token", "longest_gap")):
        values = sorted(each[i] for each in streams)
        for percent in (50, 99):
            result[f"{name}_p{percent}_s"] = round(values[int(len(values) * percent / 100)], 6)
    return result


async def _stream(session: aiohttp.ClientSession, url: str, body: Body) -> tuple[float, ...]:
    """Time to the first chunk, per token after it, and the longest between two chunks."""
    started = time.perf_counter()
    times = []
    async with session.post(f"{url}/v1/completions", json=body | {"stream": True}) as reply:
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {(await reply.text())[:300]}")
        async for line in reply.content:
            if line.startswith(b'data: {"error"'):
                raise RuntimeError(line.decode())
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
    gaps = [after - before for before, after in itertools.pairwise(times)]
    per_token = (times[-1] - times[0]) / max(1, body["max_tokens"] - 1)
    return times[0] - started, per_token, max(gaps, default=0.0)


def _session() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=900))


def generate_tokens_per_s(model: str, bodies: list[Body], batch_size: int, repeat: int) -> float:
    """transformers' own greedy generate on the same prompts, `batch_size` at a time."""
    import torch

    from benchmarks.peer import batch_generate

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    run, best = batch_generate(model, device, dtype), 0.0
    for _ in range(repeat):
        started = time.perf_counter()
        for first in range(0, len(bodies), batch_size):
            run(bodies[first : first + batch_size])
        num_tokens = len(bodies) * bodies[0]["max_tokens"]
        best = max(best, num_tokens / (time.perf_counter() - started))
    return round(best, 1)


def compare_with_generate(model: str, vocab_size: int, repeat: int) -> dict[str, float]:
    """The `chat` workload one at a time and as one padded batch, tokens a second."""
    bodies = make_workload("chat", vocab_size)
    return {
        "generate_one_by_one": generate_tokens_per_s(model, bodies[:8], 1, repeat),
        "generate_batch_of_32": generate_tokens_per_s(model, bodies, len(bodies), repeat),
    }


def main() -> None:
    """Run the workloads asked for and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", help="a server that runs; without it one is started")
    parser.add_argument("--model", default=str(MODEL_FOLDER))
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--workloads", default="chat")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--flags", nargs="*", default=[], help="for the server that is started")
    parser.add_argument("--no-generate", action="store_true", help="leave transformers out")
    args = parser.parse_args()
    own = (
        contextlib.nullcontext(args.base_url) if args.base_url else serving(args.model, *args.flags)
    )
    results: dict[str, Any] = {}
    with own as url:
        for name in args.workloads.split(","):
            passes = [
                asyncio.run(measure(url, name, args.vocab_size, attempt))
                for attempt in range(args.repeat)
            ]
            results[name] = max(passes, key=lambda row: row["requests_per_s"])
            print(name, results[name], flush=True)
    if not args.no_generate:
        peers = compare_with_generate(args.model, args.vocab_size, args.repeat)
        results["peers"] = peers
        if "chat" in results:
            ours = results["chat"]["output_tokens_per_s"]
            results["over_one_by_one"] = round(ours / peers["generate_one_by_one"], 2)
            results["over_batch_of_32"] = round(ours / peers["generate_batch_of_32"], 2)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
