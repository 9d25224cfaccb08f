"""What a trace costs the server: the middleware around a request that does nothing.

    python -m benchmarks.bench_traces
    python -m benchmarks.bench_traces --streams 256 [--flags='--device cpu']

Prints the CPU time of such a request without traces and with them, and that of the thread that
sends them afterwards, to a collector in another process. With `--streams`: the tokens a second of
so many streams at once, on two servers of which one sends traces. Turns alternate, and the best of
each is told, as the other things on a machine only take away; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from unittest.mock import Mock

from starlette.types import Message, Receive, Scope, Send

from benchmarks.bench_serving import serving
from demo import MODEL_FOLDER
from sampling.params import SamplingParams
from server.bench.measure import BenchConfig, measure
from server.bench.target import find_model, parse_target
from server.bench.workloads import Lengths
from server.fronts import FrontTable
from server.http.access_log import AccessLog
from server.http.account import GenerationReport, account_of
from server.http.lifecycle import Lifecycle
from server.http.outcomes import Accounts
from server.http.traces import Traces
from server.metrics import Metrics

COMMAND = "python -m benchmarks.bench_traces"
COUNT, TURNS = 1000, 7
"""Requests of a turn, which is over before the thread first looks, and turns."""
_COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def _report() -> GenerationReport:
    now = time.monotonic()
    return GenerationReport(
        model="model",
        reply_id="cmpl-1",
        num_prompt_tokens=100,
        num_cached=16,
        num_generated=256,
        params=SamplingParams(seed=1),
        max_tokens=256,
        num_choices=1,
        finish_reasons=("length",),
        queued_at=now - 1.0,
        started_at=now - 0.9,
        drew_at=now - 0.8,
    )


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    account_of(scope).report = _report
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def cpu_us(accounts: Accounts) -> float:
    """Microseconds of CPU time a request, over `COUNT` of them."""

    async def receive() -> Message:
        raise NotImplementedError

    async def send(message: Message) -> None:
        pass

    began = time.process_time()
    for _ in range(COUNT):
        scope: Scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        await accounts(scope, receive, send)
        await asyncio.sleep(0)
    return (time.process_time() - began) / COUNT * 1e6


@contextmanager
def collector() -> Iterator[str]:
    """The URL of a collector in a process of its own, which forgets what it is sent."""
    command = [sys.executable, "-c", _COLLECTOR]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def accounts_with(traces: Traces | None) -> Accounts:
    """The middleware around a request that does nothing."""
    return Accounts(
        _nothing,
        metrics=Metrics("model", Mock(), FrontTable()),
        access_log=AccessLog(enabled=False),
        lifecycle=Lifecycle(),
        echo_request_id=False,
        traces=traces,
    )


def tokens_per_s(streams: int, turns: int, model: str, flags: list[str]) -> dict[str, float]:
    """The best tokens a second of `turns` turns, without traces and with them.

    Raises:
        RuntimeError: a request failed.
    """
    best = {"off": 0.0, "on": 0.0}
    with collector() as url, ThreadPoolExecutor() as pool, ExitStack() as stack:
        traced = ["--otlp-traces-endpoint", url]
        starts = [serving(model, *flags), serving(model, *traced, *flags)]
        servers = list(pool.map(stack.enter_context, starts))
        for turn in range(1 + turns):  # the first warms up
            measured = [one_pass(server, streams, seed=turn) for server in servers]
            print(f"turn {turn}: {measured[0]:.0f} off, {measured[1]:.0f} on", flush=True)
            if turn:
                best = {name: max(best[name], x) for name, x in zip(best, measured, strict=True)}
    return {name: round(value, 1) for name, value in best.items()}


def one_pass(url: str, streams: int, seed: int) -> float:
    """Tokens a second of streams that are sent at once, by as many client processes as fit."""
    target = parse_target(url, key=None, verifies=True)
    config = BenchConfig(
        target=target,
        model=asyncio.run(find_model(target, None)),
        workloads=["stream"],
        concurrencies=[streams],
        rate=1.0,
        repeat=1,
        processes=min(4, os.cpu_count() or 1),
        seed=seed,
        vocab_size=8000,
        lengths=Lengths(size=streams),
        omit_fields=(),
        timeout_s=300.0,
    )
    (point,) = measure(config, lambda *_: None, lambda _: None).points
    if point.errors:
        raise RuntimeError(f"{point.errors}")
    return point.figures["output_tokens_per_s"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, help="measure so many streams at once")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--model", default=str(MODEL_FOLDER))
    parser.add_argument("--flags", default="", help="of both servers, separated by blanks")
    args = parser.parse_args()
    if args.streams is None:
        accounts_times(args.turns)
        return
    found = tokens_per_s(args.streams, args.turns, args.model, args.flags.split())
    share = found["on"] / found["off"]
    print(
        f"{args.streams} streams: {found['off']} tokens/s without traces, {found['on']} with them"
    )
    told = {"command": f"{COMMAND} --streams {args.streams}", "unit": "tokens/s", **found}
    print(json.dumps(told | {"share": round(share, 4)}))


def accounts_times(turns: int) -> None:
    """Measure and print the CPU time of a request's accounts."""
    times: dict[str, list[float]] = {"off": [], "on": [], "thread": []}
    with collector() as url:
        for _ in range(turns):
            times["off"].append(asyncio.run(cpu_us(accounts_with(None))))
            traces = Traces(url)
            times["on"].append(asyncio.run(cpu_us(accounts_with(traces))))
            began = time.process_time()
            traces.close()
            times["thread"].append((time.process_time() - began) / COUNT * 1e6)
    least = {name: round(min(values), 1) for name, values in times.items()}
    print(
        f"a request's accounts take {least['off']} us of CPU time without traces, {least['on']} "
        f"with them, and {least['thread']} of the thread that sends them"
    )
    print(json.dumps({"command": COMMAND, "unit": "us", **least}))


if __name__ == "__main__":
    main()
