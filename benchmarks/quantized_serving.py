"""Figures of quantized weights and caches over HTTP, beside bfloat16 ones in the same run.

    python -m benchmarks.record --parts quantized-serving

Weights are random, so that only times mean anything.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_quantized import INT4
from benchmarks.bench_serving import serving
from benchmarks.figures import Figure, figure
from benchmarks.serving_figures import FLAGS, SMALL, bench
from benchmarks.shapes import BIG, write_shape
from server.bench.figures import Figures


@dataclass(frozen=True)
class Case:
    """A server; the first of a shape is the plain one that the others are compared with.

    Attributes:
        workloads: what is sent to it.
        flags: what makes it another.
        is_int4: the folder is of a checkpoint of 4 bits.
        most_ms: milliseconds that a token of one stream may take.
        most: that over the plain server's.
        must: the least of its `mixed` tokens a second over the plain server's.
    """

    shape: str
    name: str
    workloads: str
    flags: tuple[str, ...] = ()
    is_int4: bool = False
    most_ms: float | None = None
    most: float | None = None
    must: float | None = None


FP8, FP8_CACHE = ("--quantization", "fp8"), ("--kv-cache-dtype", "fp8")
CASES = (
    Case(BIG, "bf16", "single,mixed"),
    Case(BIG, "fp8 weights", "single", FP8, most_ms=2.7, most=0.66),
    Case(BIG, "fp8 weights and cache", "mixed", (*FP8, *FP8_CACHE), must=1.35),
    Case(BIG, "4-bit weights", "single", is_int4=True, most_ms=2.3),
    Case(SMALL, "bf16", "mixed"),
    Case(SMALL, "fp8 cache", "mixed", FP8_CACHE, must=1.25),
)


def figures() -> Iterator[Figure]:
    """The figures of all cases."""
    plain: dict[str, dict[str, Figures]] = {}
    command = "python -m benchmarks.record --parts quantized-serving"
    for case in CASES:
        found = _serve(case)
        for made in _figures_of(case, found, plain.setdefault(case.shape, found)):
            yield made | {"command": command, "check": "every request was answered"}


def _figures_of(
    case: Case, found: dict[str, Figures], plain: dict[str, Figures]
) -> Iterator[Figure]:
    what = f"{case.shape}, {case.name}"
    if "single" in found:
        ms = 1e3 * found["single"]["token_p50_s"]
        name = f"{what}, one stream over HTTP"
        yield figure(name, round(ms, 3), "ms", "<=", case.most_ms, None)
        if found is not plain:
            ratio = round(ms / (1e3 * plain["single"]["token_p50_s"]), 3)
            yield figure(f"{what}, one stream over bf16", ratio, "x", "<=", case.most, None)
    if "mixed" in found:
        rate = found["mixed"]["output_tokens_per_s"]
        yield figure(f"{what}, `mixed` over HTTP", round(rate), "tokens/s", ">=", None, None)
        if found is not plain:
            ratio = round(rate / plain["mixed"]["output_tokens_per_s"], 3)
            yield figure(f"{what}, `mixed` over bf16", ratio, "x", ">=", case.must, None)


def _serve(case: Case) -> dict[str, Figures]:
    """Measure the workloads of one case on a server of its own."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_shape(case.shape, Path(folder) / "model")
        if case.is_int4:
            config = model / "config.json"
            content = json.loads(config.read_text()) | {"quantization_config": INT4}
            config.write_text(json.dumps(content))
        with serving(str(model), *FLAGS, *case.flags) as url:
            found = bench(url, case.shape, case.workloads)
    for name, figures_of_one in found.items():
        print(case.shape, case.name, name, figures_of_one, flush=True)
    return found
