"""`make bench-gpu`: measures every figure and writes them to a file, h200.json for an H200.

    python -m benchmarks.record --parts lora:qwen3-0.6b,speculation --seconds 560

What the parts are is in `benchmarks.parts`. First all are started at once, with few layers, so that
Triton's cache has their kernels; then they are measured one after another, on several GPUs one on
each. A part that fails, or takes longer than it may, leaves the others theirs. Each figure is
printed and written at once, with its GPU and the git tree ids of `sampling/` and `engine/` it was
measured on; those that were not measured keep what they were, and the file's own `trees` moves when
all were. The last lines are a table of what must be, and of what was skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks.cards import Settings, measure, prepare
from benchmarks.figures import Figure, is_good, report, table
from benchmarks.parts import MARK, PARTS

FOLDER = Path(__file__).parent
OUTPUT = FOLDER / "h200.json"
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


def write(output: Path, made: list[Figure], versions_of_made: dict[str, str]) -> None:
    """Put new figures in the place of old ones of the same name."""
    old = json.loads(output.read_text()) if output.exists() else {"figures": [], "trees": {}}
    figures = {each["name"]: each for each in (*old["figures"], *made)}
    newest = made[-1]["trees"]
    all_new = all(each["trees"] == newest for each in figures.values())
    content = {
        "gpu": old.get("gpu", made[-1]["gpu"]),
        "versions": versions_of_made,
        "trees": newest if all_new else old["trees"],
        "figures": list(figures.values()),
    }
    output.write_text(json.dumps(content, indent=1) + "\n")


class Recorder:
    """Prints the lines of parts, and writes the figures that are among them.

    Attributes:
        made: the figures.
    """

    def __init__(self, output: Path, measured_on: dict[str, str]) -> None:
        self.made: list[Figure] = []
        self._output, self._measured_on = output, measured_on
        self._lock = threading.Lock()

    def tell(self, part: str, line: str) -> None:
        """Take a line of a part."""
        with self._lock:
            if not line.startswith(MARK):
                print(f"[{part}] {line}", flush=True)
                return
            self.made.append(json.loads(line.removeprefix(MARK)) | {"trees": self._measured_on})
            report(self.made[-1])
            write(self._output, self.made, versions())


def merge(output: Path, other: Path) -> None:
    """Take the figures of another file, as one that a machine without the repository wrote."""
    found = json.loads(other.read_text())
    write(output, found["figures"], found["versions"])


def settings_of(args: argparse.Namespace) -> Settings:
    """The GPUs that this process may use, its time, and what its benchmarks may not."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    cards = [str(card) for card in range(torch.cuda.device_count())]
    if visible and cards:
        cards = visible.split(",")
    environment = {}
    if args.without_flashinfer:
        places = [str(FOLDER / "without_flashinfer"), os.environ.get("PYTHONPATH", "")]
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, places)),
            "TAILRACE_USE_FLASHINFER_SAMPLER": "0",
        }
    return Settings(cards or [""], time.monotonic() + args.seconds, environment)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="names, or how names begin")
    parser.add_argument("--seconds", type=float, default=1e9, help="what is left then is skipped")
    parser.add_argument("--prepare", type=float, default=110.0, help="seconds for all starts")
    parser.add_argument("--without-flashinfer", action="store_true", help="as if not installed")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--merge", type=Path, help="measure nothing, take another file's figures")
    parser.add_argument("--sampling-tree", help="git tree id, where there is no repository")
    parser.add_argument("--engine-tree", help="likewise")
    args = parser.parse_args()
    asked = args.parts.split(",")
    args.names = [name for name in PARTS if any(name.startswith(each) for each in asked)]
    if unknown := [each for each in asked if not any(name.startswith(each) for name in PARTS)]:
        parser.error(f"no part is called {', '.join(unknown)}: {', '.join(PARTS)}")
    return args


def main() -> int:
    """Measure the parts asked for; the exit status is 1 where a figure is not what it must be."""
    args = arguments()
    if args.merge is not None:
        merge(args.output, args.merge)
        return 0
    settings, recorder = settings_of(args), Recorder(args.output, trees(args))
    if args.prepare > 0:
        until = min(settings.deadline, time.monotonic() + args.prepare)
        prepare(args.names, settings._replace(deadline=until))
    wrong = measure(args.names, settings, recorder.tell)
    print(table(recorder.made))
    for name, said in wrong.items():
        print(f"{name}: {said}", flush=True)
    return 1 if wrong or not all(map(is_good, recorder.made)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
