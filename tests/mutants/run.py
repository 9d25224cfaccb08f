"""Runs the mutants: each is put into a copy of the project, where its tests must fail.

Usage: `python -m tests.mutants.run [NAME ...]`; without names, all of them. The checkout is not
touched. Exits with 1 where a mutant survived, or where the tests fail without any mutant.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).parents[2]
COPIED = ("sampling", "engine", "server", "demo", "tests", "website", "docs", "pyproject.toml")
NUM_COPIES = 2
"""Mutants run at a time, each in a copy of its own."""

LIMIT_S = 900
"""Seconds after which tests that do not end count as failed."""

PASSED, FAILED = 0, 1
"""Exit status of pytest; others mean that the tests could not be run."""


def copy_project(folder: Path) -> Path:
    """Copy what the tests need, without compiled files."""
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def run_tests(folder: Path, tests: Sequence[str], interpreted: bool) -> tuple[int, str]:
    """Run tests in a copy; returns pytest's exit status and the last lines it printed."""
    # Compiled files are found stale by size and time, which a mutant need not change.
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    env |= {"TRITON_INTERPRET": "1"} if interpreted else {}
    command = (sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests)
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"no end after {LIMIT_S} s"
    return done.returncode, "\n".join(done.stdout.splitlines()[-15:])


def run_mutant(folder: Path, mutant: Mutant) -> tuple[int, str]:
    """Put a mutant into a copy, run its tests and take it out again."""
    path = folder / mutant.path
    source = path.read_text()
    count = source.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.name}: its text is found {count} times in {mutant.path}")
    path.write_text(source.replace(mutant.old, mutant.new))
    try:
        return run_tests(folder, mutant.tests, mutant.interpreted)
    finally:
        path.write_text(source)


def check_green(folder: Path, mutants: Sequence[Mutant]) -> bool:
    """Whether the tests of these mutants pass without any mutant."""
    is_green = True
    for interpreted in (False, True):
        tests = {test for m in mutants if m.interpreted == interpreted for test in m.tests}
        if not tests:
            continue
        status, lines = run_tests(folder, sorted(tests), interpreted)
        if status != PASSED:
            print(f"the tests fail without a mutant (status {status}):\n{lines}", flush=True)
            is_green = False
    return is_green


def run_all(folders: Sequence[Path], mutants: Sequence[Mutant]) -> list[str]:
    """Run mutants, one at a time in each folder; returns the names of those that survived."""
    free: SimpleQueue[Path] = SimpleQueue()
    for folder in folders:
        free.put(folder)

    def run(mutant: Mutant) -> bool:
        folder, started = free.get(), time.monotonic()
        try:
            status, lines = run_mutant(folder, mutant)
        finally:
            free.put(folder)
        verdict = {FAILED: "red", PASSED: "SURVIVED"}.get(status, f"NOT RUN (status {status})")
        print(f"{mutant.name:60} {verdict:10} {time.monotonic() - started:6.1f} s", flush=True)
        if status not in (PASSED, FAILED):
            print(lines, flush=True)
        return status == FAILED

    with ThreadPoolExecutor(len(folders)) as pool:
        is_red = list(pool.map(run, mutants))
    return [mutant.name for mutant, red in zip(mutants, is_red, strict=True) if not red]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="names of mutants; all without any")
    names = parser.parse_args().names
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        folders = [copy_project(Path(temporary) / str(i)) for i in range(NUM_COPIES)]
        if not check_green(folders[0], mutants):
            return 1
        survivors = run_all(folders, mutants)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants are red")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
