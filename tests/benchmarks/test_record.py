"""The file of figures, and the battery over a benchmark of the demo model."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import (
    bench_decisions,
    bench_demo,
    bench_hybrids,
    bench_invariance,
    bench_lora,
    bench_rollouts,
    bench_speculation,
)
from benchmarks.figures import Figure, figure, table
from benchmarks.record import merge, write
from benchmarks.shapes import TINY

TREES = {"sampling": "a", "engine": "b"}


def made(name: str, value: float, trees: dict[str, str] = TREES) -> Figure:
    return figure(name, value, "ms", "<=", 2.0, None, 1.0) | {"gpu": "one", "trees": trees}


def test_new_figures_take_the_place_of_old_ones(tmp_path: Path) -> None:
    path, other = tmp_path / "all.json", tmp_path / "other.json"
    write(path, [made("first", 1.0), made("second", 1.5)], {"torch": "1"})
    write(other, [made("second", 2.5, TREES | {"engine": "c"}) | {"gpu": "two"}], {"torch": "2"})
    merge(path, other)
    found = json.loads(path.read_text())
    assert [each["value"] for each in found["figures"]] == [1.0, 2.5]
    assert [each["gpu"] for each in found["figures"]] == ["one", "two"]
    assert found["versions"] == {"torch": "2"}
    assert found["trees"] == TREES, "not all figures are of the new trees"
    write(path, [made("first", 1.0, TREES | {"engine": "c"})], {"torch": "2"})
    assert json.loads(path.read_text())["trees"]["engine"] == "c"


def test_the_table_has_what_must_be_and_marks_misses() -> None:
    plain = figure("recorded", 3.0, "ms", "<=", None, None)
    lines = table([made("first", 1.0), made("second", 2.5), plain]).splitlines()
    assert [line.split() for line in lines] == [
        ["figure", "must", "aim", "got"],
        ["first", "<=", "2", "<=", "1", "1", "ms"],
        ["second", "<=", "2", "<=", "1", "2.5", "ms", "MISS"],
    ]


TRIALS = {
    "lora": lambda: bench_lora.figures(TINY),
    "invariance": lambda: bench_invariance.figures(TINY),
    "hybrids": lambda: bench_hybrids.figures("qwen-tiny"),
    "speculation": lambda: bench_speculation.figures(TINY),
    "decisions": lambda: bench_decisions.figures(TINY),
    "rollouts": lambda: bench_rollouts.figures(TINY),
    "drafts": bench_demo.figures,
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TRIALS)
def test_benchmarks_run_to_their_end_on_a_cpu(name: str) -> None:
    found = list(TRIALS[name]())
    assert len({each["name"] for each in found}) == len(found)
    assert all(math.isfinite(each["value"]) and each["command"] for each in found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_battery_makes_ready_measures_and_writes(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.record", "--parts", "drafts", "--prepare", "300"]
    command += ["--output", str(output), "--without-flashinfer"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=1500)
    (one,) = json.loads(output.read_text())["figures"]
    assert one["gpu"] == "cpu"
    assert "ready drafts" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(one["name"])
