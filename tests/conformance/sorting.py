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
    """Print how many tests passed, and failures by group; returns the number in none.

    Those that apply are all that ran, without failures that need the peer's internals; of tests
    with parameters, also as functions, which pass where all of their parameters do.
    """
    groups: list[dict[str, Any]] = tomllib.loads((GROUPS / f"{suite}.toml").read_text())["group"]
    ran = [(name, outcome) for name, outcome in results if outcome != "skipped"]
    places = {name: _group_of(name, groups) for name, outcome in ran if outcome == "failed"}
    failed = Counter(places[name] for name, outcome in ran if outcome == "failed")
    kinds = {place: groups[place]["kind"] for place in failed if place is not None}
    internal = {place for place, kind in kinds.items() if kind == "internals"}
    applies = [pair for pair in ran if places.get(pair[0]) not in internal]
    passes: dict[str, bool] = {}
    for name, outcome in applies:
        function = name.partition("[")[0]
        passes[function] = passes.get(function, True) and outcome == "passed"
    num_passed = sum(outcome == "passed" for _, outcome in ran)
    print(f"\n{suite}: {num_passed} of {len(ran)} passed, of {len(applies)} that apply")
    print(f"as functions: {sum(passes.values())} of {len(passes)} that apply")
    for place, kind in sorted(kinds.items()):
        print(f"| {failed[place]} | {KINDS[kind]} | {groups[place]['why']} |")
    unsorted = [name for name, found in places.items() if found is None]
    for name in unsorted:
        print(f"not sorted: {name}")
    return failed[None]


def _group_of(name: str, groups: Sequence[dict[str, Any]]) -> int | None:
    """The first group that has a failure; None for none."""
    for i, group in enumerate(groups):
        if any(re.search(pattern, name) for pattern in group["tests"]):
            return i
    return None
