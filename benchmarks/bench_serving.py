"""Throughput and latency of a server over HTTP, beside transformers' generate in the same run.

    python -m benchmarks.bench_serving --workloads chat            # starts its own server
    python -m benchmarks.bench_serving --base-url URL --model NAME --vocab-size 151936

Output is counted from each reply's usage. The best of `--repeat` passes counts, each pass on
fresh prompts. Prints a line a workload; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import aiohttp

from benchmarks.workloads import Body, make_workload
from demo import MODEL_FOLDER


@contextlib.contextmanager
def serving(model: str, *flags: str, ready_timeout_s: float = 300.0) -> Iterator[str]:
    """A server of our own on a free port; gives its base URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "server.cli", "serve", model, "--port", str(port), *flags]
    server = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + ready_timeout_s
        while not _ready(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not become ready")
            time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=30)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


async def load(url: str, bodies: list[Body], concurrency: int) -> dict[str, float]:
    """Send all bodies, `concurrency` at once; tokens and requests a second, latencies in s."""
    limit = asyncio.Semaphore(concurrency)
    timeout = aiohttp.ClientTimeout(total=900)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        started = time.perf_counter()
        replies = await asyncio.gather(*(_send(session, url, body, limit) for body in bodies))
        seconds = time.perf_counter() - started
    latencies = sorted(latency for latency, _ in replies)
    return {
        "seconds": round(seconds, 3),
        "requests_per_s": round(len(bodies) / seconds, 2),
        "output_tokens_per_s": round(
            sum(usage["completion_tokens"] for _, usage in replies) / seconds, 1
        ),
        "latency_p50_s": round(latencies[len(latencies) // 2], 4),
        "latency_p99_s": round(latencies[int(len(latencies) * 0.99)], 4),
    }


async def _send(
    session: aiohttp.ClientSession, url: str, body: Body, limit: asyncio.Semaphore
) -> tuple[float, dict[str, Any]]:
    async with limit:
        started = time.perf_counter()
        async with session.post(f"{url}/v1/completions", json=body) as reply:
            text = await reply.text()
            if reply.status != 200:
                raise RuntimeError(f"{reply.status}: {text[:300]}")
        return time.perf_counter() - started, json.loads(text)["usage"]


def generate_tokens_per_s(model: str, bodies: list[Body], batch_size: int, repeat: int) -> float:
    """transformers' own greedy generate on the same prompts, `batch_size` at a time."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    peer = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(device).eval()
    num_out = bodies[0]["max_tokens"]
    best = 0.0
    for _ in range(repeat):
        started = time.perf_counter()
        for first in range(0, len(bodies), batch_size):
            prompts = [body["prompt"] for body in bodies[first : first + batch_size]]
            ids = torch.tensor(prompts, device=device)
            peer.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_out,
                min_new_tokens=num_out,
                do_sample=False,
                pad_token_id=0,
            )
        best = max(best, len(bodies) * num_out / (time.perf_counter() - started))
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
    parser.add_argument("--concurrency", type=int, default=1024)
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
            passes = []
            for attempt in range(args.repeat):
                bodies = make_workload(name, args.vocab_size, attempt)
                passes.append(asyncio.run(load(url, bodies, args.concurrency)))
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
