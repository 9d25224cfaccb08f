"""Quantized weights beside bfloat16 ones, in one run: loading, one stream, 256 rows, prefill.

fp8 is `--quantization fp8`, int4 a checkpoint of 4 bits with a scale for each 128 inputs. Keys and
values in float8 under bfloat16 weights are measured where prompts are computed.

    python -m benchmarks.bench_quantized --shape qwen3-8b

Weights are random, so that only times mean anything; `ratio` is quantized over bfloat16. Prints a
line a measurement; the last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.bench_engine import DEVICE, Row, TimedRunner, measure, prefill, timed_engine
from benchmarks.figures import Figure, figure
from benchmarks.shapes import BIG, SHAPES, write_shape
from engine.config import CacheConfig, CacheDtype, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.models.loader import load_model

WORKLOADS = {"single": "decode_period_ms", "greedy": "decode_gpu_ms"}
"""The figure of each workload that is compared: a token of one stream, a step of 256 rows."""
MUSTS = {"single": 0.66, "greedy": 0.8, "prefill": 1 / 1.45}
CACHE_MUST = 1 / 0.95
"""Time of prefill with keys in float8 over that with keys in bfloat16."""
LOAD_S, LOAD_GB = 4.0, 2.0
"""Seconds that quantising may add to loading, and memory it may take beside the weights."""
INT4 = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}


def make_engine(
    model: ModelConfig, cache_dtype: CacheDtype = "auto"
) -> tuple[Engine, TimedRunner, Row]:
    """An engine, its runner, which notes the times of its steps, and what loading took."""
    torch.cuda.reset_peak_memory_stats()
    before, started = torch.cuda.memory_allocated(), time.perf_counter()
    loaded = load_model(model, DEVICE)
    torch.cuda.synchronize()
    row = {
        "load_seconds": round(time.perf_counter() - started, 2),
        "weights_gb": round((torch.cuda.memory_allocated() - before) / 1e9, 2),
        "peak_gb": round((torch.cuda.max_memory_allocated() - before) / 1e9, 2),
    }
    config = EngineConfig(
        model=model,
        cache=CacheConfig(num_blocks=20_000, dtype=cache_dtype),
        scheduler=SchedulerConfig(max_rows=256, max_step_tokens=8192),
        wait_for_kernels=True,
    )
    return *timed_engine(config, loaded), row


def measurements(shape: str) -> dict[str, dict[str, Row]]:
    """All measurements, by quantization and name."""
    rows: dict[str, dict[str, Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_shape(shape, Path(folder)))
        for name in ("none", "fp8", "fp8 cache", "int4"):
            if name == "int4":
                config = Path(path) / "config.json"
                content = json.loads(config.read_text()) | {"quantization_config": INT4}
                config.write_text(json.dumps(content))
            model = ModelConfig(
                model=path,
                dtype="bfloat16",
                load_format="dummy",
                max_model_len=4096,
                quantization="fp8" if name == "fp8" else None,
            )
            engine, timed, loading = make_engine(model, "fp8" if name == "fp8 cache" else "auto")
            rows[name] = {"load": loading, "prefill": prefill(engine, timed, shape)}
            for workload in () if name == "fp8 cache" else WORKLOADS:
                rows[name][workload] = measure(engine, timed, workload, 2, shape)
            for what, row in rows[name].items():
                print(name, what, row, flush=True)
            del engine, timed
            gc.collect()
            torch.cuda.empty_cache()
    return rows


def ratios(rows: dict[str, dict[str, Row]], name: str) -> dict[str, float]:
    """Times of quantized weights over those of bfloat16."""
    keys = WORKLOADS | {"prefill": "prefill_gpu_ms"}
    return {
        what: round(rows[name][what][key] / rows["none"][what][key], 3)
        for what, key in keys.items()
    }


def figures(shape: str = BIG) -> Iterator[Figure]:
    """The figures of one shape."""
    rows = measurements(shape)
    command = f"python -m benchmarks.bench_quantized --shape {shape}"
    for made in (*_times(shape, rows), *_cache_and_load(shape, rows)):
        yield made | {"command": command, "check": ""}


def _times(shape: str, rows: dict[str, dict[str, Row]]) -> Iterator[Figure]:
    """Steps and prefill with quantized weights."""
    for what, ratio in ratios(rows, "fp8").items():
        yield figure(f"{shape} fp8 {what} over bf16", ratio, "x", "<=", MUSTS[what], None)
    for name, what in (("fp8", "single"), ("fp8", "greedy"), ("int4", "single")):
        value = rows[name][what][WORKLOADS[what]]
        must = 2.3 if name == "int4" else None
        yield figure(f"{shape} {name} {what}", value, "ms", "<=", must, None)


def _cache_and_load(shape: str, rows: dict[str, dict[str, Row]]) -> Iterator[Figure]:
    """Prefill with keys in float8, and what quantising costs while a model is loaded."""
    plain, quantized = rows["none"], rows["fp8"]["load"]
    ratio = rows["fp8 cache"]["prefill"]["prefill_gpu_ms"] / plain["prefill"]["prefill_gpu_ms"]
    what = f"{shape} fp8 cache, prefill over bf16's"
    yield figure(what, round(ratio, 3), "x", "<=", round(CACHE_MUST, 3), None)
    added = quantized["load_seconds"] - plain["load"]["load_seconds"]
    what = f"{shape} fp8, seconds that quantising adds to loading"
    yield figure(what, round(added, 2), "s", "<=", LOAD_S, None)
    beside = quantized["peak_gb"] - quantized["weights_gb"]
    what = f"{shape} fp8, memory that loading takes beside the weights"
    yield figure(what, round(beside, 2), "GB", "<=", LOAD_GB, None)


def main() -> None:
    """Measure one shape and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default=BIG)
    args = parser.parse_args()
    rows = measurements(args.shape)
    ratio = {name: ratios(rows, name) for name in ("fp8", "int4")}
    print(json.dumps({"ratio": ratio, **rows}))


if __name__ == "__main__":
    main()
