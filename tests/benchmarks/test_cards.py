"""Parts of the battery run on their own GPUs, end in time with all they started, and are told."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import cards
from benchmarks.cards import OWNER, Settings, measure, prepare
from benchmarks.parts import PARTS, Part

LONG_S = 60.0
PROGRAMS = {
    "fine": "print('a line')",
    "fails": "print('before'); raise SystemExit(3)",
    # A process of another session that its parent does not wait for.
    "hangs": "import subprocess, sys, time\n"
    "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "print(child.pid, flush=True)\ntime.sleep(600)",
    "two": "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])",
    "layers": "import os; print(os.environ['BENCHMARK_LAYERS']); raise SystemExit(5)",
}


class Lines:
    """What parts printed."""

    def __init__(self) -> None:
        self.of: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def tell(self, name: str, line: str) -> None:
        with self._lock:
            self.of.setdefault(name, []).append(line)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """Programs in place of parts; the lines that they print."""
    found = Lines()
    monkeypatch.setattr(cards, "LEAST_S", 0.0)
    for name in PROGRAMS:
        seconds = 3 if name == "hangs" else 60
        monkeypatch.setitem(PARTS, name, Part("none", (), seconds, 2 if name == "two" else 1))

    def command_of(name: str) -> list[str]:
        return [sys.executable, "-c", PROGRAMS[name], name]

    monkeypatch.setattr(cards, "command_of", command_of)
    return found


def settings(*names: str, seconds: float = LONG_S) -> Settings:
    return Settings(names, time.monotonic() + seconds, {})


def test_what_fails_or_hangs_leaves_the_others_theirs(lines: Lines) -> None:
    wrong = measure(["fails", "hangs", "fine"], settings("0"), lines.tell)
    assert wrong == {"fails": "ended with status 3", "hangs": "ended after 3 s"}
    assert lines.of["fails"] == ["before", "ended with status 3"]
    assert lines.of["fine"] == ["a line"]
    child = int(lines.of["hangs"][0])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_parts_are_spread_over_gpus_and_those_of_several_come_last(lines: Lines) -> None:
    began = time.monotonic()
    assert measure(["two", "hangs", "fine"], settings("5", "7"), lines.tell).keys() == {"hangs"}
    assert lines.of["two"] == ["5,7"]
    assert list(lines.of)[-1] == "two"
    assert time.monotonic() - began < LONG_S


def test_what_has_no_time_or_gpus_is_named(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = measure(["two", "fine"], settings("0"), lines.tell)
    assert wrong == {"two": "skipped: needs 2 GPUs"}
    monkeypatch.setattr(cards, "LEAST_S", 20.0)
    wrong = measure(["fine"], settings("0", seconds=10.0), lines.tell)
    assert wrong == {"fine": "skipped: no time is left"}


def test_all_are_made_ready_side_by_side_with_few_layers(
    lines: Lines, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare(["layers", "hangs", "fine"], settings("0", seconds=5.0))
    told = capfd.readouterr().out
    assert "ready layers: 0 s ended with status 5\n    8\n" in told
    assert "ended after" in told
    assert "a line" not in told


def test_the_mark_of_a_benchmark_is_in_all_it_starts(lines: Lines) -> None:
    program = f"import os, subprocess; subprocess.run(['printenv', '{OWNER}'])"
    command = [sys.executable, "-c", program, "marked"]
    assert cards.run(command, settings("0"), "0", LONG_S, lines.tell) == ""
    assert len(lines.of["marked"][0]) == 32


def test_every_part_names_what_yields_its_figures() -> None:
    known = json.loads(Path("benchmarks/h200.json").read_text())
    assert known["figures"]
    for part in PARTS.values():
        module, function = part.source.split(":")
        source = Path("benchmarks", f"{module}.py").read_text()
        assert f"\ndef {function}(" in source
