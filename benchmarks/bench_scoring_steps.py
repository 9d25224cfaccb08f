"""Where the time of scoring steps goes: the host's, and the GPU's by kernel, without HTTP.

    python -m benchmarks.bench_scoring_steps                        # the demo model on the CPU
    python -m benchmarks.bench_scoring_steps --shape qwen3-0.6b     # random weights on the GPU

For each kind of request, of `figures` in `bench_decisions`: seconds of the fastest pass, of a
prefill of as many tokens, and what torch's profiler finds in one more pass. Prints a block a kind.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.bench_scoring import (
    DEMO,
    Sizes,
    make_engine,
    prefill_s,
    request_of,
    scored_s,
    sizes_of,
)
from benchmarks.shapes import SHAPES, write_shape
from demo import MODEL_FOLDER
from engine.arrays import Int32Array
from engine.engine import Engine
from engine.messages.request import ScoringRequest

PASSES, KERNELS = 4, 12
Requests = Callable[[np.random.Generator], list[ScoringRequest]]


def kinds(sizes: Sizes) -> dict[str, Requests]:
    """What is asked for, by name; every pass has fresh tokens but for the cached query."""
    cached = np.arange(20, 520, dtype=np.int32)

    def ids(rng: np.random.Generator, *shape: int) -> Int32Array:
        drawn: Int32Array = rng.integers(10, sizes.vocab_size - 10, shape).astype(np.int32)
        return drawn

    none, many = np.zeros(0, dtype=np.int32), sizes.num_items
    labels, top = np.arange(100, 104, dtype=np.int32), np.arange(100, 356, dtype=np.int32)
    return {
        "one question, cached": lambda rng: [request_of(0, cached, ids(rng, 1, 70), labels)],
        "8 x 50 questions": lambda rng: [
            request_of(each, ids(rng, 1024), ids(rng, 50, 70), labels) for each in range(8)
        ],
        "texts to embed": lambda rng: [request_of(0, none, ids(rng, many, 200), none)],
        "teacher": lambda rng: [
            request_of(each, none, ids(rng, 1, 1024), top, num_read=1024)
            for each in range(max(many // 32, 1))
        ],
    }


def pass_of(engine: Engine, make: Requests, seed: int) -> tuple[float, int, int]:
    """Seconds, steps, and tokens of a pass."""
    requests = make(np.random.default_rng(seed))
    num_tokens = sum(len(each.query_token_ids) + len(each.item_token_ids) for each in requests)
    return *scored_s(engine, requests), num_tokens


def show(engine: Engine, sizes: Sizes, name: str, make: Requests) -> None:
    """Print what a kind of request takes."""
    passes = [pass_of(engine, make, seed) for seed in range(PASSES)]
    seconds, steps, num_tokens = min(passes)
    plain = replace(sizes, num_items=1, item_len=num_tokens)
    length = min(sizes.prompt_len, num_tokens)
    prefill = min(prefill_s(engine, plain, length, seed) for seed in range(PASSES))
    print(f"{name}: {1e3 * seconds:.1f} ms, {steps} steps, {num_tokens} tokens, ", end="")
    print(f"prefilled in {1e3 * prefill:.1f} ms", flush=True)
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]
    with profile(activities=activities) as found:
        pass_of(engine, make, PASSES)
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=order, row_limit=KERNELS, max_name_column_width=60))


def main() -> None:
    """Print all kinds, or those that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=[DEMO, *SHAPES], default=DEMO)
    parser.add_argument("--kinds", help="how names begin, after commas")
    args = parser.parse_args()
    sizes = sizes_of(args.shape)
    with tempfile.TemporaryDirectory() as folder:
        is_demo = args.shape == DEMO
        model = str(MODEL_FOLDER if is_demo else write_shape(args.shape, Path(folder)))
        engine = make_engine(model, sizes)
        wanted = tuple((args.kinds or "").split(","))
        for name, make in filter(lambda pair: pair[0].startswith(wanted), kinds(sizes).items()):
            show(engine, sizes, name, make)


if __name__ == "__main__":
    main()
