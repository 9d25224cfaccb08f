"""CPU time of server, engine and client over HTTP: a request, and a token.

    python -m benchmarks.modelless MODEL --port 8000 --api-server-count 1 &
    python -m benchmarks.bench_host --base-url http://127.0.0.1:8000 --pid $!

On a machine with fewer cores than processes throughput says little; the CPU time of each process
says what it can carry at most. The client is `bench_serving`'s. Needs Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path

from benchmarks.bench_serving import CONCURRENCY, load
from server.bench.workloads import make_workload

VOCAB_SIZE = 151_936
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def child_of(pid: int) -> int:
    """The first process that `pid` started."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def measure(url: str, pids: dict[str, int], name: str, attempt: int) -> str:
    """One pass of a workload, as a line of text."""
    bodies = make_workload(name, VOCAB_SIZE, attempt)
    before = {process: cpu_s(pid) for process, pid in pids.items()}
    result = asyncio.run(load(url, bodies, CONCURRENCY))
    time.sleep(0.1)  # for what comes after the last reply
    num_tokens = result["output_tokens_per_s"] * result["seconds"]
    cells = [f"{name:14}{result['seconds']:7.2f} s"]
    for process, pid in pids.items():
        spent = (cpu_s(pid) - before[process]) * 1e6
        cells.append(f"{process} {spent / len(bodies):7.0f} {spent / num_tokens:6.1f}")
    return "   ".join(cells)


def main() -> None:
    """Print a line a pass: us a request and us a token of each process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--pid", type=int, required=True, help="the server's")
    parser.add_argument("--workloads", default="temp,logprobs,score,score-prefix")
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    pids = {"server": args.pid, "engine": child_of(args.pid), "client": os.getpid()}
    for name in args.workloads.split(","):
        for attempt in range(args.repeat):
            print(measure(args.base_url, pids, name, attempt), flush=True)


if __name__ == "__main__":
    main()
