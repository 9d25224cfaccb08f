"""A suite's failures, sorted by what they come of.

Each suite has a file `sorted/<suite>.toml` of groups: a kind, why its tests fail, and expressions
of their names. A failure in no group is one of this server's, or new.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

GROUPS = Path(__file__).resolve().parent / "sorted"
KINDS = {
    "difference": "documented difference",
    "internals": "needs the peer's internals",
    "model": "needs a model that knows things",
}
"""What a failure may come of, if not of this server."""


def run_sorted(suite: str, cwd: Path, arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Run pytest and print its results, sorted; returns the number of failures in no group."""
    results = cwd / "results.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={results}", "--tb=short"]
    command += ["-p", "no:cacheprovider", "-p", "no:warnings", "-o", "junit_family=xunit1"]
    subprocess.run([*command, *arguments], cwd=cwd, env=dict(env), check=False)
    return print_sorted(suite, list(outcomes(results)))


def outcomes(results: Path) -> Iterator[tuple[str, str]]:
    """Each test of a run as `file::name`, and whether it "passed", "failed" or was "skipped"."""
    for case in ElementTree.parse(results).iter("testcase"):
        file = Path(case.get("file") or case.get("classname", "").replace(".", "/")).stem
        failed = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None
        outcome = "failed" if failed else "skipped" if skipped else "passed"
        yield f"{file}::{case.get('name')}", outcome


def print_sorted(suite: str, results: Sequence[tuple[str, str]]) -> int:
    """Print how many tests passed, and failures by group; returns the number in none."""
    groups: list[dict[str, Any]] = tomllib.loads((GROUPS / f"{suite}.toml").read_text())["group"]
    counts: Counter[int] = Counter()
    unsorted = []
    for name, outcome in results:
        if outcome != "failed":
            continue
        for i, group in enumerate(groups):
            if any(re.search(pattern, name) for pattern in group["tests"]):
                counts[i] += 1
                break
        else:
            unsorted.append(name)
    total = Counter(outcome for _, outcome in results)
    print(f"\n{suite}: {total['passed']} of {total['passed'] + total['failed']} passed")
    for i, group in enumerate(groups):
        if counts[i]:
            print(f"| {counts[i]} | {KINDS[group['kind']]} | {group['why']} |")
    for name in unsorted:
        print(f"not sorted: {name}")
    return len(unsorted)
