"""`make test-gpu`: runs the tests marked `gpu`, a few processes on each GPU.

    python -m tests.gpu.run --seconds 560 --output build/gpu.json [tests/engine/weights ...]

What has not run since it changed comes first, then what failed; among those the files of `FIRST`.
A test that fails is named at once, and why. When the time is over processes are interrupted, and
what they did counts; the files that were not run are named. `results.json` keeps for each file what
it and the sources were, and which tests passed and failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.cards import Settings, run
from tests.gpu.plugin import RESULTS, SHARE

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).parent / "results.json"
FIRST = (
    "tests/engine/kernels/lora",
    "tests/engine/kernels/recurrent",
    "tests/engine/kernels/decode",
    "tests/engine/kernels/invariant",
    "tests/engine/kernels/experts/test_adapted.py",
    "tests/engine/kernels/experts/test_shared_gate.py",
    "tests/engine/attention/test_cuda.py",
    "tests/engine/startup/verify/test_invariance.py",
    "tests/engine/runner/test_speculation_cuda.py",
    "tests/engine/runner/graphs/test_piecewise_graphs.py",
    "tests/engine/models/formats/test_held_modules_cuda.py",
    "tests/engine/weights",
    "tests/engine/parallel/test_gpus.py",
    "tests/engine/speculation",
    "tests/engine/models/families/test_hybrids_cuda.py",
    "tests/engine/models/families/test_families_cuda.py",
)
"""Files and folders, most wanted first; the last compile kernels for nine minutes."""
ALONE = (
    "tests/engine/memory/test_mapped_cuda.py",
    "tests/engine/memory/test_sleep_cuda.py",
    "tests/engine/parallel/test_gpus.py",
    "tests/engine/startup/test_memory.py",
    "tests/engine/test_faults.py",
    "tests/sampling/test_cuda_memory.py",
)
"""They count what of a GPU's memory is free, have ranks that wait for one another, or steps that
may take three seconds: each runs while nothing else does."""
SHARES = {
    "tests/engine/models/families/test_families_cuda.py": 4,
    "tests/engine/models/families/test_hybrids_cuda.py": 4,
    "tests/sampling/test_sampler_kernels.py": 2,
}
"""Long files, by the processes that share their tests."""
FLASHINFER = "TAILRACE_USE_FLASHINFER_SAMPLER"

Row = dict[str, Any]


class Job(NamedTuple):
    """Some tests of one file, in a process of their own."""

    file: str
    share: str
    flashinfer: bool

    @property
    def name(self) -> str:
        """How it is named in the output."""
        words = ["" if self.share == "0/1" else f" {self.share}", " FlashInfer" * self.flashinfer]
        return self.file + "".join(words)


def digest(paths: Sequence[Path]) -> str:
    """What files hold, in a few letters."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


@cache
def sources() -> str:
    """The digest of what is tested."""
    return digest([path for name in ("engine", "sampling") for path in (ROOT / name).rglob("*.py")])


def gpu_files(places: Sequence[str]) -> list[str]:
    """The files below some places that have tests for a GPU."""
    marks = ("mark.gpu", "where import DEVICES", "drafted_rows import", "kernel_cases import")
    found = set()
    for place in places:
        path = ROOT / place
        for each in [path] if path.is_file() else path.rglob("test_*.py"):
            if any(mark in each.read_text(encoding="utf-8") for mark in marks):
                found.add(str(each.relative_to(ROOT)))
    return sorted(found)


def order(file: str, known: dict[str, Row]) -> tuple[int, int, str]:
    """What is run in the order of this: new or changed, failed, passed on other sources, passed."""
    first = [at for at, place in enumerate(FIRST) if file.startswith(place)]
    row = known.get(file)
    if row is None or row["file"] != digest([ROOT / file]):
        rank = 0
    elif row["failed"]:
        rank = 1
    else:
        rank = 2 if row["sources"] != sources() else 3
    return rank, first[0] if first else len(FIRST), file


def jobs_of(file: str, *, has_flashinfer: bool) -> Iterator[Job]:
    """A file's processes; the sampler's tests run with FlashInfer's kernels too."""
    count = SHARES.get(file, 1)
    ways = (False, True) if has_flashinfer and file.startswith("tests/sampling") else (False,)
    for flashinfer in ways:
        for share in range(count):
            yield Job(file, f"{share}/{count}", flashinfer)


class Outcomes:
    """What came of tests, printed as it comes."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.unfinished: list[str] = []
        self._lock = threading.Lock()

    def add(self, job: Job, path: Path, said: str) -> None:
        """Take what a process wrote; `said` is what went wrong with the process.

        Failed tests end it with 1, as does what keeps it from any test; none at all with 5.
        """
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        is_known = said in ("", "ended with status 5") or (said == "ended with status 1" and lines)
        with self._lock:
            self.rows.setdefault(job.file, []).extend(map(json.loads, lines))
            if not is_known:
                self.unfinished.append(f"{job.name}: {said}")

    def tell(self, name: str, line: str) -> None:
        """Print a line of a process that names a failure, or counts what passed."""
        if any(word in line for word in (" FAILED", " ERROR", "E   ", " passed", " failed")):
            with self._lock:
                print(f"{Path(name).name}: {line}", flush=True)

    def summary(self, gpu: str) -> dict[str, Row]:
        """By file: digests, how many passed, which failed and why, how many seconds."""
        return {
            file: {
                "file": digest([ROOT / file]),
                "sources": sources(),
                "gpu": gpu,
                "passed": sum(row["outcome"] == "passed" for row in rows),
                "skipped": sum(row["outcome"] == "skipped" for row in rows),
                "failed": {row["test"]: row["why"] for row in rows if row["outcome"] == "failed"},
                "seconds": round(sum(row["seconds"] for row in rows), 1),
            }
            for file, rows in sorted(self.rows.items())
            if rows and not any(each.startswith(file) for each in self.unfinished)
        }


def run_job(job: Job, card: str, settings: Settings, folder: Path, outcomes: Outcomes) -> None:
    """Run the tests of a job on a GPU, if there is time."""
    if settings.seconds_left <= 0:
        outcomes.add(job, folder / "none", "not run")
        return
    path = folder / job.name.replace("/", "-")
    environment = {SHARE: job.share, RESULTS: str(path), FLASHINFER: str(int(job.flashinfer))}
    command = [sys.executable, "-m", "pytest", "-p", "tests.gpu.plugin", "-o", "addopts="]
    command += ["--strict-markers", "-v", "--tb=short", "-m", "gpu", job.file]
    settings = settings._replace(environment={**settings.environment, **environment})
    outcomes.add(job, path, run(command, settings, card, settings.seconds_left, outcomes.tell))


def run_all(jobs: Sequence[Job], settings: Settings, processes: int, outcomes: Outcomes) -> None:
    """Run jobs in their order, so many at once on each GPU, and then those that want one alone."""
    with tempfile.TemporaryDirectory() as made:
        folder, left, lock = Path(made), list(jobs), threading.Lock()

        def work(card: str, *, alone: bool) -> None:
            while True:
                with lock:
                    own = [job for job in left if (job.file in ALONE) == alone]
                    if not own:
                        return
                    left.remove(own[0])
                run_job(own[0], card, settings, folder, outcomes)

        for alone, each in ((False, processes), (True, 1)):
            cards = [card for card in settings.cards for _ in range(each)]
            with ThreadPoolExecutor(len(cards)) as pool:
                list(pool.map(lambda card, alone=alone: work(card, alone=alone), cards))


def main() -> int:
    """Run what was asked for; the exit status is 1 where something failed or was not run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", nargs="*", default=["tests/engine", "tests/sampling"])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--processes", type=int, default=4, help="at once on a GPU")
    parser.add_argument("--output", type=Path, default=STORED)
    args = parser.parse_args()
    began = time.monotonic()
    known = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    cards = [str(card) for card in range(torch.cuda.device_count())] or [""]
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        cards = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    has_flashinfer = any((Path(place) / "flashinfer").is_dir() for place in sys.path)
    files = sorted(gpu_files(args.places), key=lambda file: order(file, known))
    jobs = [job for file in files for job in jobs_of(file, has_flashinfer=has_flashinfer)]
    outcomes = Outcomes()
    settings = Settings(cards, began + args.seconds, {}, interrupts=True)
    run_all(jobs, settings, args.processes, outcomes)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    found = outcomes.summary(gpu)
    args.output.write_text(json.dumps(known | found, indent=1) + "\n", encoding="utf-8")
    failed = [test for rows in outcomes.rows.values() for test in _failed(rows)]
    passed = sum(row["outcome"] == "passed" for rows in outcomes.rows.values() for row in rows)
    print(*(f"FAILED {test}" for test in failed), *outcomes.unfinished, sep="\n")
    print(f"{passed} passed, {len(failed)} failed, {len(outcomes.unfinished)} not at their end")
    return 1 if failed or outcomes.unfinished else 0


def _failed(rows: list[Row]) -> list[str]:
    return [f"{row['test']}: {row['why'][:200]!r}" for row in rows if row["outcome"] == "failed"]


if __name__ == "__main__":
    sys.exit(main())
