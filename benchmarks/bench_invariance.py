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
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace

from benchmarks.bench_engine import run
from benchmarks.bench_speculation import LENGTH, NUM_DRAFTS, free_memory, write_head
from benchmarks.shapes import EXPERTS, SHAPES, TRIALS, shape_config, write_shape
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import invariant_parts
from server.bench.workloads import Body, Lengths, make_workload

MUSTS = {
    **{"single": 0.90, "greedy": 0.85, "burst": 0.80, "long": 0.70, "mixed": 0.85, "eagle": 0.90}
}
EXPERTS_MUST = 0.80
LENGTHS = {"long": Lengths(size=2, output=1), "burst": Lengths(size=256)}
MAX_ROWS, BLOCK, STEP_TOKENS, MAX_LEN = 256, 16, 8192, 8192


class Figure(NamedTuple):
    """Seconds without the mode and with it, and the least ratio that will do."""

    workload: str
    without: float
    seconds: float
    must: float

    @property
    def ratio(self) -> float:
        """Throughput with the mode over throughput without it."""
        return self.without / self.seconds


def bodies_of(workload: str, vocab_size: int) -> list[Body]:
    """The requests of a workload."""
    name = "single" if workload == "eagle" else workload
    return make_workload(name, vocab_size, 0, LENGTHS.get(workload, Lengths()))


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
) -> list[Figure]:
    """Run workloads without the mode, and then with it."""
    target = write_shape(shape, folder / "target")
    if layers is not None:
        config = shape_config(shape) | {"num_hidden_layers": layers}
        (target / "config.json").write_text(json.dumps(config))
    head = write_head(shape, folder / "eagle")
    vocab_size: int = shape_config(shape)["vocab_size"]
    taken: dict[str, list[float]] = {workload: [] for workload in workloads}
    for invariant in (False, True):
        model = ModelConfig(
            model=str(target), max_model_len=MAX_LEN, load_format="dummy", batch_invariant=invariant
        )
        build = invariant_parts(EngineConfig(model=model))
        for workload in workloads:
            began, bodies = time.perf_counter(), bodies_of(workload, vocab_size)
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
    musts = MUSTS | ({"greedy": EXPERTS_MUST} if shape in EXPERTS else {})
    return [
        Figure(name, without, seconds, musts.get(name, 0.85))
        for name, (without, seconds) in taken.items()
    ]


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
        figures = measured(args.shape, workloads, Path(folder), args.repeats, args.layers)
    rows: list[dict[str, Any]] = []
    for figure in figures:
        rows.append(figure._asdict() | {"ratio": round(figure.ratio, 3)})
        print(f"{args.shape} {figure.workload}: {figure.ratio:.3f}, must {figure.must}", flush=True)
    print(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}))


if __name__ == "__main__":
    main()
