"""The engine with `--batch-invariant` over the engine without it, on random weights.

    python -m benchmarks.bench_invariance --shape qwen3-0.6b --workloads single,greedy,mixed

All requests of a workload are sent at once, to an engine without the mode first and to one with it
then; the best of several runs counts. `eagle` is one stream with four drafts a step, of which
synthetic acceptance leaves three tokens a step; `long` is two prompts here, for their prefill.
Prints a line a measurement; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace

from benchmarks.bench_engine import run
from benchmarks.bench_speculation import LENGTH, NUM_DRAFTS, free_memory, write_head
from benchmarks.figures import Figure, figure
from benchmarks.shapes import BIG, EXPERTS, SHAPES, TINY, TRIALS, shape_config, write_shape
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import invariant_parts
from server.bench.workloads import Body, Lengths, make_workload

LIMITS: dict[str, tuple[float, float]] = {
    **{"single": (0.90, 0.97), "greedy": (0.85, 0.95), "burst": (0.80, 0.92)},
    **{"long": (0.70, 0.85), "mixed": (0.85, 0.95), "eagle": (0.90, 0.97)},
}
"""What throughput with the mode over throughput without it must be, and ought to."""
EXPERTS_LIMITS = (0.80, 0.95)
WORKLOADS = {
    BIG: ("single", "greedy", "burst", "long", "eagle"),
    "qwen3-30b-a3b": ("greedy",),
    TINY: ("single", "eagle"),
}
"""Of a shape; others have `OTHERS`."""
OTHERS = ("single", "greedy", "mixed", "eagle")
LENGTHS = {"long": Lengths(size=2, output=1), "burst": Lengths(size=256)}
FEW = Lengths(input=16, output=8)
"""Where a benchmark is tried out."""
MAX_ROWS, BLOCK, STEP_TOKENS, MAX_LEN = 256, 16, 8192, 8192


class Pair(NamedTuple):
    """Seconds without the mode and with it."""

    workload: str
    without: float
    seconds: float

    @property
    def ratio(self) -> float:
        """Throughput with the mode over throughput without it."""
        return self.without / self.seconds


def bodies_of(workload: str, shape: str) -> list[Body]:
    """The requests of a workload."""
    name = "single" if workload == "eagle" else workload
    lengths = FEW if shape == TINY else LENGTHS.get(workload, Lengths())
    return make_workload(name, shape_config(shape)["vocab_size"], 0, lengths)


def config_of(model: ModelConfig, workload: str, bodies: list[Body], head: Path) -> EngineConfig:
    """The configuration of an engine with room for a workload's requests."""
    lengths = [len(body["prompt"]) + body["max_tokens"] + BLOCK for body in bodies]
    num_blocks = sum(-(-length // BLOCK) for length in lengths)
    speculation = None
    if workload == "eagle":
        speculation = SpeculativeConfig(
            method="eagle",
            model=str(head),
            num_speculative_tokens=NUM_DRAFTS,
            rejection_sample_method="synthetic",
            synthetic_acceptance_length=LENGTH,
        )
    return EngineConfig(
        model=replace(model, max_model_len=max(lengths)),
        cache=CacheConfig(num_blocks=num_blocks + 2, prefix_caching=False),
        scheduler=SchedulerConfig(max_rows=min(len(bodies), MAX_ROWS), max_step_tokens=STEP_TOKENS),
        speculation=speculation,
        wait_for_kernels=True,
    )


def seconds_of(engine: Engine, bodies: list[Body], repeats: int) -> float:
    """The least seconds in which the requests were answered, once they have been before."""
    run(engine, bodies)
    return min(run(engine, bodies)[1] for _ in range(repeats))


def measured(
    shape: str, workloads: list[str], folder: Path, repeats: int, layers: int | None
) -> list[Pair]:
    """Run workloads without the mode, and then with it."""
    target = write_shape(shape, folder / "target")
    if layers is not None:
        config = shape_config(shape) | {"num_hidden_layers": layers}
        (target / "config.json").write_text(json.dumps(config))
    head = write_head(shape, folder / "eagle")
    taken: dict[str, list[float]] = {workload: [] for workload in workloads}
    for invariant in (False, True):
        model = ModelConfig(
            model=str(target), max_model_len=MAX_LEN, load_format="dummy", batch_invariant=invariant
        )
        build = invariant_parts(EngineConfig(model=model))
        for workload in workloads:
            began, bodies = time.perf_counter(), bodies_of(workload, shape)
            engine = build(config_of(model, workload, bodies, head)).engine()
            taken[workload].append(seconds_of(engine, bodies, repeats))
            spent = time.perf_counter() - began
            word = "with" if invariant else "without"
            print(
                f"{shape} {workload} {word}: {taken[workload][-1]:.4f} s ({spent:.0f})", flush=True
            )
            del engine
            free_memory()
        del build
        free_memory()
    return [Pair(name, *seconds) for name, seconds in taken.items()]


def figures(shape: str) -> Iterator[Figure]:
    """The figures of one shape."""
    workloads = list(WORKLOADS.get(shape, OTHERS))
    words = f"python -m benchmarks.bench_invariance --shape {shape}"
    made_by = {
        "command": f"{words} --workloads {','.join(workloads)}",
        "check": "tests/engine/startup/verify/test_invariance.py compares bits",
    }
    with tempfile.TemporaryDirectory() as folder:
        for pair in measured(shape, workloads, Path(folder), 2, None):
            must, aim = EXPERTS_LIMITS if shape in EXPERTS else LIMITS[pair.workload]
            what = f"{shape}, `{pair.workload}`, batch invariant: rate over without"
            ratio = round(pair.ratio, 3)
            yield figure(what, ratio, "ratio", ">=", must, 1.0, aim) | made_by


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    shapes = [*SHAPES, *EXPERTS, *TRIALS]
    parser.add_argument("--shape", default="qwen3-0.6b", choices=shapes)
    parser.add_argument("--workloads", default="single,greedy,mixed")
    parser.add_argument("--layers", type=int, help="run the first layers alone")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    workloads = args.workloads.split(",")
    with tempfile.TemporaryDirectory() as folder:
        pairs = measured(args.shape, workloads, Path(folder), args.repeats, args.layers)
    rows: list[dict[str, Any]] = []
    for pair in pairs:
        rows.append(pair._asdict() | {"ratio": round(pair.ratio, 3)})
        print(f"{args.shape} {pair.workload}: {pair.ratio:.3f}", flush=True)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(json.dumps({"device": name, "rows": rows}))


if __name__ == "__main__":
    main()
