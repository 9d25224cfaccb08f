"""`make bench-gpu`: measures every figure and writes them to a file, h200.json for an H200.

What the figures are is in `benchmarks.figures`; here each gets the git tree ids of `sampling/` and
`engine/` it was measured on. Figures that were not measured keep what they were; the file's own
`trees` moves when all were.

    python -m benchmarks.record --parts sampling,qwen3-0.6b,qwen3-8b,serving:qwen3-0.6b

Each part prints its figures as they are measured, and a part that fails leaves the others theirs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks import (
    bench_decisions,
    bench_expert_steps,
    bench_logprobs,
    bench_quantized,
    bench_rollouts,
    bench_speculation,
    bench_structured,
    bench_verification,
    quantized_serving,
)
from benchmarks.figures import Figure, engine_figures, report
from benchmarks.parallel_figures import parallel_figures
from benchmarks.sampling_figures import sampling_figures
from benchmarks.scoring_figures import scoring_figures
from benchmarks.serving_figures import LLAMA, SMALL, serving_figures, start_figures
from benchmarks.shapes import BIG

SHAPES = (SMALL, BIG)
OUTPUT = Path(__file__).parent / "h200.json"
PARTS: dict[str, Callable[[], Iterator[Figure]]] = {
    "sampling": sampling_figures,
    "verification": bench_verification.figures,
    "logprobs": bench_logprobs.figures,
    "quantized": partial(bench_quantized.figures, BIG),
    "quantized-serving": quantized_serving.figures,
    "experts": bench_expert_steps.figures,
    "parallel": parallel_figures,
    "speculation": partial(bench_speculation.figures, BIG),
    **{shape: partial(engine_figures, shape) for shape in SHAPES},
    f"starts:{SMALL}": partial(start_figures, SMALL),
    **{f"serving:{shape}": partial(serving_figures, shape) for shape in (*SHAPES, LLAMA)},
    **{f"scoring:{shape}": partial(scoring_figures, shape) for shape in SHAPES},
    **{f"decisions:{shape}": partial(bench_decisions.figures, shape) for shape in SHAPES},
    **{f"rollouts:{shape}": partial(bench_rollouts.figures, shape) for shape in SHAPES},
    **{f"structured:{shape}": partial(bench_structured.figures, shape) for shape in SHAPES},
}
PACKAGES = ("torch", "triton", "flashinfer-python", "transformers")


def trees(args: argparse.Namespace) -> dict[str, str]:
    """The git tree ids of what is measured."""
    given = {"sampling": args.sampling_tree, "engine": args.engine_tree}
    command = ["git", "rev-parse"]
    return {
        name: tree or subprocess.check_output([*command, f"HEAD:{name}"], text=True).strip()
        for name, tree in given.items()
    }


def versions() -> dict[str, str]:
    """Versions of the packages that the figures depend on."""
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


def measure(part: str, made: list[Figure], output: Path, measured_on: dict[str, str]) -> bool:
    """Measure a part's figures and write each at once; whether all are what they must be."""
    passed = True
    try:
        for each in PARTS[part]():
            made.append(each)
            write(output, made, measured_on)
            passed &= report(each)
    except Exception:  # what the other parts measure counts all the same
        traceback.print_exc()
        return False
    return passed


def main() -> int:
    """Measure the parts asked for; the exit status is 1 where a figure is not what it must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--sampling-tree", help="git tree id, where there is no repository")
    parser.add_argument("--engine-tree", help="likewise")
    args = parser.parse_args()
    parts, measured_on, made = args.parts.split(","), trees(args), list[Figure]()
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    passed = [measure(part, made, args.output, measured_on) for part in parts]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
