"""What a trace costs the server: the middleware around a request that does nothing.

    python -m benchmarks.bench_traces

Prints the CPU time of such a request without traces and with them, and that of the thread that
sends them afterwards, to a collector in another process. Turns alternate, and the least of each is
told, as the other things on a machine only add; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock

from starlette.types import Message, Receive, Scope, Send

from sampling.params import SamplingParams
from server.fronts import FrontTable
from server.http.access_log import AccessLog
from server.http.account import GenerationReport, account_of
from server.http.lifecycle import Lifecycle
from server.http.middleware import Accounts
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


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    times: dict[str, list[float]] = {"off": [], "on": [], "thread": []}
    with collector() as url:
        for _ in range(TURNS):
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
