"""Which figures stand for the price of logprobs and scores; see `benchmarks.figures`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import bench_scoring
from benchmarks.figures import Figure, figure
from benchmarks.shapes import BIG

CHECK = (
    "all requests were answered, the scoring request by as many items; the values are compared "
    "with transformers' by tests/serving/test_scoring.py"
)


def scoring_figures(shape: str) -> Iterator[Figure]:
    """The figures of one shape; for the large one only those of separate requests."""
    workloads = "score" if shape == BIG else bench_scoring.WORKLOADS
    found = bench_scoring.measurements(shape, workloads.split(","))
    command = f"python -m benchmarks.bench_scoring --shape {shape} --workloads {workloads}"
    for made in _figures_of(shape, found):
        yield made | {"command": command, "check": CHECK}


def _figures_of(shape: str, found: dict[str, Any]) -> Iterator[Figure]:
    prefill_s, rate = found["prefill_prompts_of_512_s"], found["score_requests_per_s"]
    length = bench_scoring.REQUEST_LEN
    num_prompts = bench_scoring.sizes_of(shape).item_tokens // length
    alone = num_prompts / found[f"prefill_prompts_of_{length}_s"]
    name = f"{shape}, separate score requests"
    if shape == BIG:
        share = round(rate / alone, 3)
        yield figure(f"{name}: share of their prefill without HTTP", share, "share", ">=", 0.9, 1.0)
        return
    yield figure(name, rate, "requests/s", ">=", 1_500.0, round(alone, 1))
    prefix = found["score-prefix_requests_per_s"]
    yield figure(f"{name}, shared prefix", prefix, "requests/s", ">=", None, None)
    ratio = round(found["gscore_s"] / prefill_s, 3)
    what = f"{shape}, 2000 items after one query over HTTP: time over their tokens' prefill"
    yield figure(what, ratio, "ratio", "<=", 1.5, None)
    for case in ("T 0.8", "T 0.8, top-p 0.95"):
        share = found[f"logprobs, {case}"]["share"]
        what = f"{shape}, {case}: throughput with logprobs=5 over without"
        yield figure(what, share, "ratio", ">=", 0.95, 1.0)
