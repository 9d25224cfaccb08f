"""`make bench-gpu`: measures every figure and writes them to a file, h200.json for an H200.

A figure is {name, value, unit, sense, must, bound, command, check, trees}: what it must be at
least or at most, the least it could be on this GPU, how to measure it, which comparison of tokens
stood beside it, and the git tree ids of `sampling/` and `engine/` it was measured on. Figures that
were not measured keep what they were; the file's own `trees` moves when all were.

    python -m benchmarks.record --parts qwen3-0.6b,qwen3-8b,serving,start
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks import bench_engine
from benchmarks.bench_serving import load, serving
from benchmarks.shapes import weight_bytes, write_shape
from benchmarks.workloads import make_workload

OUTPUT = Path(__file__).parent / "h200.json"
PRODUCT_TFLOPS = 790
"""Of large bfloat16 products on an H200, measured with random data."""
COPY_GB_PER_S = 4298
VOCAB_SIZE = 151936
BIG = "qwen3-8b"
PACKAGES = ("torch", "triton", "flashinfer-python", "transformers")

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
    """What one shape does without HTTP."""
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
    """What was compared; raises where it failed."""
    if not row["passed"]:
        raise RuntimeError(f"greedy tokens are wrong: {row}")
    return (
        f"{row['tokens']} greedy tokens within {row['worst_gap']} of transformers' highest logit, "
        f"margin {row['margin']}, {row['same_top']:.1%} the highest itself; none of 256 requests "
        "differs from the engine without graphs"
    )


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


def serving_figures() -> Iterator[Figure]:
    """0.6B over HTTP with random weights; the tokens' check is that of the engine's figures."""
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_shape("qwen3-0.6b", Path(folder)))
        flags = ("--load-format", "dummy", "--max-num-batched-tokens", "8192")
        with serving(model, *flags) as url:
            for name, make in (("single", _single), ("greedy", _rate), ("mixed", _rate)):
                results = []
                for attempt in range(3):
                    bodies = make_workload(name, VOCAB_SIZE, attempt)
                    results.append(asyncio.run(load(url, bodies, 1024)))
                best = max(results, key=lambda row: row["output_tokens_per_s"])
                print("serving", name, best, flush=True)
                yield make(name, best) | {
                    "command": "python -m benchmarks.record --parts serving",
                    "check": "that of the engine's figures",
                }


def _single(name: str, best: dict[str, float]) -> Figure:
    bound = weight_bytes("qwen3-0.6b") / COPY_GB_PER_S / 1e6
    value = round(1e3 / best["output_tokens_per_s"], 3)
    return figure("qwen3-0.6b, one stream over HTTP", value, "ms", "<=", 1.15, round(bound, 3))


def _rate(name: str, best: dict[str, float]) -> Figure:
    must = {"greedy": 60_000.0, "mixed": 25_000.0}[name]
    value = best["output_tokens_per_s"]
    return figure(f"qwen3-0.6b, `{name}` over HTTP", value, "tokens/s", ">=", must, None)


def start_figures() -> Iterator[Figure]:
    """Seconds until ready, with an empty Triton cache and with a full one."""
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_shape("qwen3-0.6b", Path(folder) / "model"))
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
        for name, must in (("cold", 60.0), ("warm", 20.0)):
            started = time.monotonic()
            with serving(model, "--load-format", "dummy"):
                seconds = round(time.monotonic() - started, 1)
            print("start", name, seconds, flush=True)
            yield figure(
                f"qwen3-0.6b, start until ready, {name}", seconds, "s", "<=", must, None
            ) | {
                "command": "python -m benchmarks.record --parts start",
                "check": "the server answered /ready",
            }


def trees(args: argparse.Namespace) -> dict[str, str]:
    """Git tree ids of what is measured."""
    given = {"sampling": args.sampling_tree, "engine": args.engine_tree}
    command = ["git", "rev-parse"]
    return {
        name: tree or subprocess.check_output([*command, f"HEAD:{name}"], text=True).strip()
        for name, tree in given.items()
    }


def versions() -> dict[str, str]:
    """Of the packages the figures depend on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def write(output: Path, made: list[Figure], measured_on: dict[str, str]) -> None:
    """Put new figures in the place of old ones of the same name."""
    old = json.loads(output.read_text()) if output.exists() else {"figures": [], "trees": {}}
    figures = {each["name"]: each for each in old["figures"]}
    figures |= {each["name"]: each | {"trees": measured_on} for each in made}
    all_new = all(each["trees"] == measured_on for each in figures.values())
    content = {
        "gpu": torch.cuda.get_device_name(),
        "versions": versions(),
        "trees": measured_on if all_new else old["trees"],
        "figures": list(figures.values()),
    }
    output.write_text(json.dumps(content, indent=1) + "\n")


def report(made: list[Figure]) -> bool:
    """Print the figures; whether all are what they must be."""
    passed = True
    for each in made:
        value, must = each["value"], each["must"]
        good = must is None or (value <= must if each["sense"] == "<=" else value >= must)
        passed &= good
        wanted = "" if must is None else f" (must be {each['sense']} {must})"
        print(f"{'ok  ' if good else 'MISS'} {each['name']}: {value} {each['unit']}{wanted}")
    return passed


def main() -> int:
    """Measure the parts asked for; the exit status is 1 where a figure is not what it must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default="qwen3-0.6b,qwen3-8b,serving,start")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--sampling-tree", help="git tree id, where there is no repository")
    parser.add_argument("--engine-tree", help="likewise")
    args = parser.parse_args()
    measured_on = trees(args)
    made: list[Figure] = []
    for part in args.parts.split(","):
        sources = {"serving": serving_figures, "start": start_figures}
        for each in sources[part]() if part in sources else engine_figures(part):
            made.append(each)
            write(args.output, made, measured_on)
    return 0 if report(made) else 1


if __name__ == "__main__":
    raise SystemExit(main())
