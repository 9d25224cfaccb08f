"""Benchmarks of several ranks: what hangs or dies is ended in time, and all run on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from benchmarks.contenders import Contender, LostError, attempt, ready

START_S = 60.0


@pytest.fixture
def contender() -> Iterator[Contender]:
    made = Contender("one", ["tests.engine.parallel.contender"])
    yield made
    made.end()


def test_a_contender_answers_line_by_line(contender: Contender) -> None:
    assert ready([contender], START_S).keys() == {"one"}
    for line in ("first", "second"):
        contender.ask(line)
        assert contender.reply(START_S) == {"line": line}


def test_what_hangs_is_ended_and_named(
    contender: Contender, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = ready([contender], START_S)["one"]["pid"]
    contender.ask("hang")
    started = time.monotonic()
    assert attempt(lambda: contender.reply(0.2)) is None
    assert time.monotonic() - started < START_S
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"lost": "one: nothing for 0 s"}
    assert not psutil.pid_exists(pid)


def test_what_dies_is_named_at_once(contender: Contender) -> None:
    ready([contender], START_S)
    contender.ask("die")
    with pytest.raises(LostError, match="one: ended with status 3"):
        contender.reply(START_S)
    contender.ask("more")
    with pytest.raises(LostError):
        contender.reply(0.0)


def rows_of(module: str, *flags: str) -> list[dict[str, Any]]:
    """The lines that a benchmark prints."""
    command = [sys.executable, "-m", module, "--start", "400", "--limit", "800", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=900)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_engines_of_one_rank_and_two_measure_every_figure() -> None:
    rows = rows_of("benchmarks.bench_parallel", "--shape", "tiny")
    assert not [row for row in rows if "lost" in row or "ended" in row]
    judged = [(row["workload"], row["of"]) for row in rows if "ratio" in row]
    assert judged == [
        ("single", "step_ms"),
        ("temp", "step_ms"),
        ("eagle", "ms_a_token"),
        ("burst", "tokens_per_s"),
        ("mixed", "tokens_per_s"),
    ]


@pytest.mark.slow
def test_samplers_of_one_rank_and_two_draw_the_same_tokens() -> None:
    rows = rows_of("benchmarks.bench_shard", "--rows", "2")
    assert [row["same_tokens"] for row in rows if "one_us" in row] == [True] * 4
