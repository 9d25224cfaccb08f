"""One engine over several GPUs beside one over one, in one run: steps, throughput, cache.

    python -m benchmarks.bench_parallel --shape qwen3-8b --sizes 1,2

Each size is a process of its own, with the same random weights. Step times are those of the wall
between steps in which all rows decode. Prints a line of JSON a size, and the ratios to the first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.shapes import BIG, SHAPES, write_shape
from engine.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SamplingConfig,
    SchedulerConfig,
)
from engine.engine import Engine
from engine.request import Request
from engine.startup.build import build_engine

VOCAB_SIZE = 151936
WORKLOADS = {
    "single": 1,
    "greedy": 256,
    "temp": 256,
    "topkp": 256,
    "logprobs": 256,
    "burst": 256,
    "mixed": 256,
}
"""Workloads of `server.bench.workloads`, and how many rows their full steps have."""


def make_engine(size: int, folder: str) -> Engine:
    """An engine over `size` GPUs, with random weights of the shape in `folder`."""
    config = EngineConfig(
        model=ModelConfig(
            model=folder, dtype="bfloat16", load_format="dummy", max_model_len=4096, device="cuda"
        ),
        cache=CacheConfig(memory_utilization=0.85),
        scheduler=SchedulerConfig(max_rows=256, max_step_tokens=8192),
        sampling=SamplingConfig(flashinfer="never"),  # it draws no rows of several ranks
        tensor_parallel_size=size,
    )
    return build_engine(config)


def measure(size: int, folder: str, workloads: list[str], repeat: int) -> dict[str, Any]:
    """The figures of an engine of `size` GPUs."""
    started = time.perf_counter()
    engine = make_engine(size, folder)
    row: dict[str, Any] = {
        "size": size,
        "start_s": round(time.perf_counter() - started, 1),
        "kv_tokens": engine.info.num_blocks * engine.info.block_size,
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    for name in workloads:
        passes = [_pass(engine, name, seed) for seed in range(1 + repeat)]
        best = min(passes[min(repeat, 1) :], key=lambda each: each["s"])  # the first warms up
        row |= {f"{name}_{key}": value for key, value in best.items()}
        print(json.dumps({"size": size, name: best}), file=sys.stderr, flush=True)
    return row


def _pass(engine: Engine, name: str, seed: int) -> dict[str, float]:
    """One pass of a workload on fresh prompts: its tokens a second, and its steps' milliseconds."""
    from benchmarks.bench_engine import _request
    from server.bench.workloads import make_workload

    requests: list[Request] = [
        _request(handle, body) for handle, body in enumerate(make_workload(name, VOCAB_SIZE, seed))
    ]
    started = before = time.perf_counter()
    for request in requests:
        engine.submit(b"", request)
    num_tokens, periods = 0, []
    while engine.has_work:
        outputs = engine.step()
        now = time.perf_counter()
        num_tokens += sum(int(output.num_new.sum()) for _, output in outputs)
        if engine.stats().num_running == WORKLOADS[name]:
            periods.append(1e3 * (now - before))
        before = now
    seconds = time.perf_counter() - started
    return {
        "s": round(seconds, 3),
        "tokens_per_s": round(num_tokens / seconds, 1),
        "step_ms": round(statistics.median(periods), 3) if periods else 0.0,
    }


def main() -> None:
    """Measure every size, each in a process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default=BIG, choices=SHAPES)
    parser.add_argument("--sizes", default="1,2")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--folder", help="of the shape, in a process of one size")
    arguments = parser.parse_args()
    workloads = arguments.workloads.split(",")
    if arguments.folder:
        row = measure(int(arguments.sizes), arguments.folder, workloads, arguments.repeat)
        print(json.dumps(row), flush=True)
        os._exit(0)  # the other ranks end with this process
    first: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_shape(arguments.shape, Path(folder))
        for size in arguments.sizes.split(","):
            flags = ["--folder", folder, "--sizes", size, "--repeat", str(arguments.repeat)]
            flags += ["--workloads", arguments.workloads]
            command = [sys.executable, "-m", "benchmarks.bench_parallel", *flags]
            output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
            row = json.loads(output.splitlines()[-1])
            first = first or row
            print(json.dumps(row))
            ratios = {k: round(v / first[k], 3) for k, v in row.items() if first[k]}
            print(json.dumps({"ratio": ratios}), flush=True)


if __name__ == "__main__":
    main()
