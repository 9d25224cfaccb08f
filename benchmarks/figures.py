"""Which figures stand for the engine's speed: what is measured, what each must be, what checks it.

A figure is {name, value, unit, sense, must, bound, command, check}: what it must be at least or at
most, the least it could be on this GPU, how to measure it, and which comparison of tokens stood
beside it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import bench_engine
from benchmarks.bench_serving import Result, complete, measure, serving
from benchmarks.peer import agreement, dummy_peer
from benchmarks.shapes import BIG, weight_bytes, write_shape
from server.bench.workloads import make_workload

PRODUCT_TFLOPS = 790
"""The rate of large bfloat16 products on an H200, measured with random data."""
COPY_GB_PER_S = 4298
VOCAB_SIZE = 151936
MUSTS = {"greedy": 60_000.0, "mixed": 25_000.0}
"""Tokens a second that the 0.6B shape must reach over HTTP."""
WORKLOADS = ("single", "greedy", "mixed", "poisson", "topkp", "sampled", "burst")
"""Logprobs and scores have figures of their own: `benchmarks.scoring_figures`."""
SERVER_FLAGS = (
    *("--load-format", "dummy", "--max-num-batched-tokens", "8192"),
    *("--gpu-memory-utilization", "0.6", "--disable-uvicorn-access-log"),
)

Figure = dict[str, Any]


def figure(
    name: str, value: float, unit: str, sense: str, must: float | None, bound: float | None
) -> Figure:
    """One figure; `must` None only records it."""
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "sense": sense,
        "must": must,
        "bound": bound,
    }


def engine_figures(shape: str) -> Iterator[Figure]:
    """The figures of one shape without HTTP."""
    # What rests on the plainest sampling comes first.
    workloads = ["single", "greedy"] + ([] if shape == BIG else ["mixed", "topkp", "logprobs"])
    command = f"python -m benchmarks.bench_engine --shape {shape}"
    check = ""
    for name, row in bench_engine.measurements(shape, workloads, repeat=2):
        print(shape, name, row, flush=True)
        if name == "check":
            check = _check(row)
        for made in _figures_of(shape, name, row):
            yield made | {"command": command, "check": check}


def _check(row: dict[str, Any]) -> str:
    """Say what was compared; raises where the comparison failed."""
    if not row["passed"]:
        raise RuntimeError(f"greedy tokens are wrong: {row}")
    return f"{_agreement(row)}; none of 256 requests differs from the engine without graphs"


def _figures_of(shape: str, name: str, row: dict[str, Any]) -> Iterator[Figure]:
    big = shape == BIG
    if name == "prefill":
        share = round(row["prefill_tflops"] / PRODUCT_TFLOPS, 3)
        what = (
            f"{shape}, prefill of 64k tokens in prompts of 512: share of {PRODUCT_TFLOPS} TFLOP/s"
        )
        yield figure(what, share, "share", ">=", 0.55 if big else None, 1.0)
    if name == "single":
        most, period = 4.7 if big else 1.15, row["decode_period_ms"]
        yield figure(f"{shape}, one stream, engine", period, "ms", "<=", most, row["bound_ms"])
    if name == "greedy":
        most, gpu = 10.5 if big else 3.6, row["decode_gpu_ms"]
        what = f"{shape}, decode step at 256, context {row['context']}, GPU"
        yield figure(what, gpu, "ms", "<=", most, row["bound_ms"])
        what = f"{shape}, 256 greedy: wall time a step over its GPU time"
        yield figure(what, row["wall_over_gpu"], "ratio", "<=", 1.1, 1.0)
    if "tokens_per_s" in row:
        must = 25_000.0 if name == "mixed" else None
        what = f"{shape}, `{name}` without HTTP"
        yield figure(what, row["tokens_per_s"], "tokens/s", ">=", must, None)
        ratio = round(row["peer_step_ms"] / row["decode_period_ms"], 1)
        what = f"{shape}, `{name}`: transformers' step over ours"
        yield figure(what, ratio, "ratio", ">=", None, None)


def serving_figures(shape: str) -> Iterator[Figure]:
    """The figures of one shape over HTTP, with random weights; for the small one its starts too."""
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_shape(shape, Path(folder) / "model"))
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
        made_by = {"command": f"python -m benchmarks.record --parts serving:{shape}"}
        started = time.monotonic()
        if shape != BIG:
            with serving(model, *SERVER_FLAGS):
                yield _start(shape, "cold", time.monotonic() - started) | made_by
        started = time.monotonic()
        with serving(model, *SERVER_FLAGS) as url:
            if shape != BIG:
                yield _start(shape, "warm", time.monotonic() - started) | made_by
            made_by["check"] = _check_over_http(url, model)
            for name in WORKLOADS if shape != BIG else ("single", "greedy"):
                passes = [asyncio.run(measure(url, name, VOCAB_SIZE, i)) for i in range(2)]
                best = max(passes, key=lambda result: result["requests_per_s"])
                print("serving", shape, name, best, flush=True)
                for made in _figures_over_http(shape, name, best):
                    yield made | made_by


def _start(shape: str, name: str, seconds: float) -> Figure:
    print("start", shape, name, round(seconds, 1), flush=True)
    most = {"cold": 60.0, "warm": 20.0}[name]
    what = f"{shape}, start until ready, {name}"
    made = figure(what, round(seconds, 1), "s", "<=", most, None)
    return made | {"check": "the server answered /ready"}


def _check_over_http(url: str, model: str) -> str:
    """Compare greedy tokens of eight requests at once with transformers' for the same weights."""
    bodies = make_workload("greedy", VOCAB_SIZE, seed=99)[:8]
    replies = asyncio.run(complete(url, [body | {"return_token_ids": True} for body in bodies]))
    tokens = {i: reply["choices"][0]["token_ids"] for i, reply in enumerate(replies)}
    row = agreement(dummy_peer(model, torch.device("cuda")), bodies, tokens)
    print("check", row, flush=True)
    if row["worst_gap"] > bench_engine.MARGIN:
        raise RuntimeError(f"greedy tokens are wrong: {row}")
    torch.cuda.empty_cache()
    return f"over HTTP, {_agreement(row)}"


def _agreement(row: dict[str, Any]) -> str:
    return (
        f"{row['tokens']} greedy tokens within {row['worst_gap']} deviations of transformers' "
        f"highest logit, margin {bench_engine.MARGIN}, {row['same_top']:.1%} the highest itself"
    )


def _figures_over_http(shape: str, name: str, best: Result) -> Iterator[Figure]:
    if name == "single":
        bound = round(weight_bytes(shape) / COPY_GB_PER_S / 1e6, 3)
        value, most = round(best["token_p50_s"] * 1e3, 3), 4.7 if shape == BIG else 1.15
        yield figure(f"{shape}, one stream over HTTP", value, "ms", "<=", most, bound)
    elif name == "poisson":
        rate = best["arrivals_per_s"]
        yield figure(f"{shape}, `poisson`: arrivals", rate, "requests/s", ">=", None, None)
        for key in ("first_token", "token", "longest_gap"):
            what = f"{shape}, `poisson`: 99th percentile, {key.replace('_', ' ')}"
            yield figure(what, round(best[f"{key}_p99_s"] * 1e3, 1), "ms", "<=", None, None)
    else:
        must = MUSTS.get(name) if shape != BIG else None
        what, value = f"{shape}, `{name}` over HTTP", best["output_tokens_per_s"]
        yield figure(what, value, "tokens/s", ">=", must, None)
