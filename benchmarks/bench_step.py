"""The kernels of one decode step, replayed from its graphs: how many, how long, from end to end.

    python -m benchmarks.bench_step --shape qwen3-8b --rows 256 --context 192
    python -m benchmarks.bench_step --shape qwen3-8b --rows 1 --context 256 --quantization fp8
    python -m benchmarks.bench_step --model FOLDER --rows 1

A kernel's time is counted from the end of the one before it, so that the column adds up to the
step: it holds the gap in front of the kernel and leaves out what ran beside the one before. Weights
are random. Prints a line a kernel, and what the replays take when nobody watches; the last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.shapes import SHAPES, write_shape
from engine.attention.cuda import CudaAttention
from engine.batch import RequestRows
from engine.config import ModelConfig
from engine.memory.pages import KVCache
from engine.models.loader import load_model
from engine.runner.graphs.capturing import capturing_stream
from engine.runner.graphs.decode_step import DecodeStep, StepRows
from engine.runner.step import TokenStage
from sampling.rows import RANDOM, SamplingNeeds, SamplingRows
from sampling.sampler import Sampler, SamplerConfig

DEVICE = torch.device("cuda")
BLOCK_SIZE = 16
REPLAYS, WATCHED = 40, 5
DRAWN = SamplingNeeds(RANDOM, greedy=True, num_top=0, num_explicit=0)


class Kernel(NamedTuple):
    """A kernel that ran: its name, and when it began and ended, in microseconds."""

    name: str
    begin: float
    end: float


def decode_step(
    folder: str, num_rows: int, context: int, quantization: Literal["fp8"] | None = None
) -> DecodeStep:
    """A decode step of rows whose next token sees `context` keys, over blocks in random order."""
    config = ModelConfig(
        model=folder,
        dtype="bfloat16",
        load_format="dummy",
        max_model_len=4096,
        quantization=quantization,
    )
    model = load_model(config, DEVICE)
    rows = RequestRows(num_rows, 4097, BLOCK_SIZE, DEVICE)
    each = -(-(context + REPLAYS) // BLOCK_SIZE)
    blocks = torch.randperm(num_rows * each, device=DEVICE).int() + 1
    rows.block_tables[:num_rows, :each] = blocks.view(num_rows, each)
    rows.token_ids.random_(1000, model.vocab_size)
    rows.num_computed[:num_rows] = context - 1
    specs = model.attention_specs
    cache = KVCache(specs, num_rows * each + 1, BLOCK_SIZE, model.dtype, DEVICE)
    for layer in cache.layers:
        layer.normal_()
    sampling_rows = SamplingRows(num_rows + 1, model.vocab_size, DEVICE, history=rows.token_ids)
    sampler = Sampler(SamplerConfig(flashinfer="never"), sampling_rows)
    step_rows = StepRows(rows)
    step_rows.ids.copy_(torch.arange(num_rows))
    attention = CudaAttention(specs, cache, rows.scratch_row)
    return DecodeStep(TokenStage(model, sampler, None), attention, rows, step_rows, 0)


def captured(step: DecodeStep, num_rows: int) -> dict[str, torch.cuda.CUDAGraph]:
    """The graphs of the step's two halves."""
    forward, draw = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.inference_mode(), capturing_stream():
        step.draw(num_rows, step.forward(num_rows), DRAWN)
        forward.capture_begin()
        hidden = step.forward(num_rows)
        forward.capture_end()
        draw.capture_begin()
        step.draw(num_rows, hidden, DRAWN)
        draw.capture_end()
    return {"layers": forward, "head and draw": draw}


def replay_us(run: Callable[[], Any]) -> float:
    """Median time of a run that nobody watches."""
    times = []
    for _ in range(REPLAYS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        run()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1e3)
    return float(statistics.median(times[5:]))


def watched(run: Callable[[], Any]) -> list[list[Kernel]]:
    """The kernels of some runs, in the order in which they ended."""
    runs = []
    for _ in range(WATCHED):
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            run()
            torch.cuda.synchronize()
        found = (
            Kernel(each.name, each.time_range.start, each.time_range.end)
            for each in trace.events()
            if each.device_type.name == "CUDA"
        )
        runs.append(sorted(found, key=lambda kernel: kernel.end))
    return runs


def by_name(runs: Iterable[list[Kernel]]) -> list[dict[str, Any]]:
    """Count, own time, and time from the end of the kernel before, of kernels by name."""
    own: dict[str, float] = defaultdict(float)
    since_last: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    num_runs = 0
    for kernels in runs:
        num_runs += 1
        last = kernels[0].begin
        for name, begin, end in kernels:
            counts[name] += 1
            own[name] += end - begin
            since_last[name] += end - last
            last = end
    rows = [
        {
            "kernel": name,
            "count": round(counts[name] / num_runs, 1),
            "us": round(since_last[name] / num_runs, 1),
            "us_each": round(since_last[name] / counts[name], 2),
            "own_us_each": round(own[name] / counts[name], 2),
        }
        for name in counts
    ]
    return sorted(rows, key=lambda row: -float(row["us"]))


def main() -> None:
    """Print the table of a step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--model", help="a model's folder, in place of a shape")
    parser.add_argument("--quantization", choices=["fp8"])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--context", type=int, default=192)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or str(write_shape(args.shape, Path(folder)))
        step = decode_step(model, args.rows, args.context, args.quantization)
    result: dict[str, Any] = {"model": args.model or args.shape, "rows": args.rows}
    print(f"{result['model']}, {args.rows} rows of {args.context} keys")
    for name, graph in captured(step, args.rows).items():
        result[name] = {"us": round(replay_us(graph.replay), 1)}
        result[name]["kernels"] = rows = by_name(watched(graph.replay))
        print(f"{name}: {result[name]['us']} us")
        for row in rows:
            print(f"{row['count']:7} x {row['us_each']:7} = {row['us']:8} us", end=" ")
            print(f"(own {row['own_us_each']:7} each)  {row['kernel']:.90}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
