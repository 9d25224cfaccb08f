"""CPU time of server, engine and client over HTTP: a request, and a token or a question.

    python -m benchmarks.modelless MODEL --port 8000 --api-server-count 1 &
    python -m benchmarks.bench_host --base-url http://127.0.0.1:8000 --pid $!

On a machine with fewer cores than processes throughput says little; the CPU time of each process
says what it can carry at most. The client is `bench_serving`'s, or that of `bench_decisions`:
`decisions` are 8 requests at once of 50 questions over fresh states of 2,048 characters, `decision`
is one question after another over a state of 500 that is cached. Needs Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp

from benchmarks.bench_decisions import FULL, Client
from benchmarks.bench_serving import CONCURRENCY, load
from server.bench.workloads import make_workload

VOCAB_SIZE = 151_936
DECISIONS, CACHED_STATE = ("decisions", "decision"), 500
NUM_DECISIONS = 320
"""Requests of a pass, so many that the clock's ticks of 10 ms do not count."""
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def child_of(pid: int) -> int:
    """The first process that `pid` started."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


class Pass(NamedTuple):
    """Requests that were answered, and the tokens or questions of all."""

    seconds: float
    num_requests: int
    num_parts: float


async def complete(url: str, name: str, attempt: int) -> Pass:
    """A pass of completions."""
    bodies = make_workload(name, VOCAB_SIZE, attempt)
    result = await load(url, bodies, CONCURRENCY)
    num_tokens = result["output_tokens_per_s"] * result["seconds"]
    return Pass(result["seconds"], len(bodies), num_tokens)


async def decide(url: str, name: str) -> Pass:
    """A pass of decisions."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        async with session.get(f"{url}/v1/models") as reply:
            model = (await reply.json())["data"][0]["id"]
        client = Client(url, model, FULL, session)
        is_lone = name == "decision"
        cached, at_once = client.text(CACHED_STATE), 1 if is_lone else FULL.requests
        num_questions, seconds = 1 if is_lone else FULL.questions, 0.0

        def body() -> tuple[str, dict[str, object]]:
            state = cached if is_lone else client.text(FULL.state)
            questions = [client.question() for _ in range(num_questions)]
            return "/v1/decisions", {"input": state, "questions": questions}

        for _ in range(NUM_DECISIONS // at_once):
            seconds += (await client.best_of(lambda: [body() for _ in range(at_once)], 1))[0]
    return Pass(seconds, NUM_DECISIONS, NUM_DECISIONS * num_questions)


def measure(url: str, pids: dict[str, int], name: str, attempt: int) -> str:
    """One pass of a workload, as a line of text."""
    before = {process: cpu_s(pid) for process, pid in pids.items()}
    work = decide(url, name) if name in DECISIONS else complete(url, name, attempt)
    seconds, num_requests, num_parts = asyncio.run(work)
    time.sleep(0.1)  # for what comes after the last reply
    cells = [f"{name:14}{seconds:7.2f} s"]
    for process, pid in pids.items():
        spent = (cpu_s(pid) - before[process]) * 1e6
        cells.append(f"{process} {spent / num_requests:7.0f} {spent / num_parts:6.1f}")
    return "   ".join(cells)


def main() -> None:
    """Print a line a pass: us a request, and a token or a question, of each process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--pid", type=int, required=True, help="the server's")
    parser.add_argument(
        "--workloads", default="temp,logprobs,score,score-prefix,decisions,decision"
    )
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    pids = {"server": args.pid, "engine": child_of(args.pid), "client": os.getpid()}
    for name in args.workloads.split(","):
        for attempt in range(args.repeat):
            print(measure(args.base_url, pids, name, attempt), flush=True)


if __name__ == "__main__":
    main()
