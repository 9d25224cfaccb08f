"""Which figures stand for the speed of several ranks: those of two programs, in one run each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.figures import Figure, figure
from benchmarks.shapes import BIG

PROGRAMS = ("benchmarks.bench_parallel", "benchmarks.bench_shard")


def parallel_figures() -> Iterator[Figure]:
    """Two ranks over one: a stream, a full step, throughput; the exchanges of a draw."""
    for program in PROGRAMS:
        made_by = {
            "command": f"python -m {program}",
            "check": "tokens of two ranks are compared with one's where both draw from one step",
        }
        for row in _rows(program):
            for made in _figures_of(row):
                yield made | made_by


def _rows(program: str) -> Iterator[dict[str, Any]]:
    """What a program prints, line by line; raises `RuntimeError` where it fails at last."""
    command = (sys.executable, "-u", "-m", program)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            if line.startswith("{"):
                yield json.loads(line)
    if running.returncode:
        raise RuntimeError(f"{program} ended with status {running.returncode}")


def _figures_of(row: dict[str, Any]) -> Iterator[Figure]:
    if "exchange_us" in row:
        what = f"two ranks, exchange of {row['rows']} rows, {row['case']}"
        yield figure(what, row["exchange_us"], "µs", "<=", row.get("must be"), None)
    if row.get("same_tokens") is not None:
        what = f"two ranks, {row['rows']} rows, {row['case']}: draws are one rank's"
        yield figure(what, int(row["same_tokens"]), "of 1", ">=", 1.0, None)
    if row.get("ratio") is not None:
        sense = ">=" if row["of"] == "tokens_per_s" else "<="
        what = f"{BIG}, {row['ranks']} ranks over one, `{row['workload']}`"
        yield figure(what, row["ratio"], "x", sense, row.get("must be"), None)
    if row.get("workload") == "eagle" and row.get("ranks") == 2 and "ms_a_token" in row:
        what = f"{BIG}, two ranks, EAGLE, one stream"
        yield figure(what, row["ms_a_token"], "ms", "<=", 1.7, None)
    if "kv_tokens_ratio" in row:
        what = f"{BIG}, {row['ranks']} ranks over one: tokens that the cache holds"
        yield figure(what, row["kv_tokens_ratio"], "x", ">=", 2.1, None)
