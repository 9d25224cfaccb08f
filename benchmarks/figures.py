"""Which figures stand for the engine's speed: what is measured, what each must be, what checks it.

A figure is {name, value, unit, sense, must, bound, command, check}: what it must be at least or at
most, the least it could be on this GPU, how to measure it, and which comparison of tokens stood
beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import bench_engine
from benchmarks.shapes import BIG

PRODUCT_TFLOPS = 790
"""The rate of large bfloat16 products on an H200, measured with random data."""

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


def report(made: Figure) -> bool:
    """Print a figure; return whether it is what it must be."""
    value, must = made["value"], made["must"]
    good: bool = must is None or (value <= must if made["sense"] == "<=" else value >= must)
    wanted = "" if must is None else f" (must be {made['sense']} {must})"
    print(
        f"{'ok  ' if good else 'MISS'} {made['name']}: {value} {made['unit']}{wanted}", flush=True
    )
    return good


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
    return f"{agreement_text(row)}; none of 256 requests differs from the engine without graphs"


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
        most, gpu = 8.4 if big else 3.6, row["decode_gpu_ms"]
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


def agreement_text(row: dict[str, Any]) -> str:
    """What a comparison of greedy tokens with transformers' found, in words."""
    return (
        f"{row['tokens']} greedy tokens within {row['worst_gap']} deviations of transformers' "
        f"highest logit, margin {bench_engine.MARGIN}, {row['same_top']:.1%} the highest itself"
    )
