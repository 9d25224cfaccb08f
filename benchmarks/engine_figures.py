"""Which figures stand for the engine's speed without HTTP: steps, streams, prefill."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import bench_engine
from benchmarks.figures import PRODUCT_TFLOPS, Figure, figure
from benchmarks.shapes import BIG

SMALL = "qwen3-0.6b"
WORKLOADS = {
    SMALL: ["single", "greedy", "mixed", "topkp", "logprobs"],
    BIG: ["single", "greedy"],
}
STREAM_MS: dict[str, tuple[float, float | None]] = {
    SMALL: (0.54, 0.45),
    "llama-1b": (0.74, 0.66),
    "qwen2.5-3b": (1.72, 1.55),
    BIG: (4.7, None),
}
STEP_MS: dict[str, tuple[float, float | None]] = {SMALL: (3.6, None), BIG: (8.8, 8.0)}
"""What a token of one stream, and a step of 256, must take at most, and ought to."""
PREFILL: dict[str, tuple[float, float | None]] = {BIG: (0.82, 0.86)}


def engine_figures(shape: str) -> Iterator[Figure]:
    """The figures of one shape without HTTP."""
    # What rests on the plainest sampling comes first.
    workloads = WORKLOADS.get(shape, ["single"])
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
    differing = row["requests_that_differ_from_eager"] or "none"
    why = ", by the library's rounding" if row["sums_depend_on_rows"] else ""
    text = agreement_text(row)
    return f"{text}; {differing} of 256 requests differ from the engine without graphs{why}"


def _figures_of(shape: str, name: str, row: dict[str, Any]) -> Iterator[Figure]:
    if name == "prefill":
        share = round(row["prefill_tflops"] / PRODUCT_TFLOPS, 3)
        must, aim = PREFILL.get(shape, (None, None))
        what = (
            f"{shape}, prefill of 64k tokens in prompts of 512: share of {PRODUCT_TFLOPS} TFLOP/s"
        )
        yield figure(what, share, "share", ">=", must, 1.0, aim)
    if name == "single":
        (most, aim), period = STREAM_MS[shape], row["decode_period_ms"]
        yield figure(f"{shape}, one stream, engine", period, "ms", "<=", most, row["bound_ms"], aim)
    if name == "greedy":
        (most, aim), gpu = STEP_MS[shape], row["decode_gpu_ms"]
        what = f"{shape}, decode step at 256, context {row['context']}, GPU"
        yield figure(what, gpu, "ms", "<=", most, row["bound_ms"], aim)
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
