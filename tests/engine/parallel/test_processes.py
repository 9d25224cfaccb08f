"""Ranks that die, raise, fall silent or keep others waiting are named; fakes play them."""

from __future__ import annotations

import io
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import psutil
import pytest

from engine.config import EngineConfig, ModelConfig
from engine.contracts.adapters import AdapterSource
from engine.contracts.runner import RunnerLostError
from engine.errors import AdapterError
from engine.parallel import processes as module
from engine.parallel.messages import DrawStep, RankTest, Setup, decode, encode
from engine.parallel.processes import LENGTH_BYTES, RankProcesses, RankStatus, read_message
from engine.parallel.readings import RankReading

WAIT_S = 30.0
CONFIG = EngineConfig(model=ModelConfig(model="m"), tensor_parallel_size=2, step_timeout_s=0.5)
SERVES = 'print(\'{"num_begun": 3, "serves": true}\', flush=True)'
STARTS = "print('{\"num_begun\": 3}', flush=True)"
BEATS = f"while True: {SERVES}; time.sleep(0.05)"

Start = Callable[[str], tuple[RankProcesses, queue.SimpleQueue[str]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a rank of some code, and gives it with the reasons for which it is lost."""
    started = []

    def make(code: str) -> tuple[RankProcesses, queue.SimpleQueue[str]]:
        lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        command = (sys.executable, "-c", f"import os, sys, time\n{code}")
        started.append(others := RankProcesses(CONFIG, lost.put, command))
        return others, lost

    yield make
    for others in started:
        others.close()


def test_a_rank_sees_its_own_gpu_first() -> None:
    """It counts GPUs from its own on; the others are there to be mapped."""
    code = 'import json, os; print(json.dumps({"error": os.environ["CUDA_VISIBLE_DEVICES"]}))'
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    gpus = ("GPU-a", "3")
    others = RankProcesses(CONFIG, lost.put, (sys.executable, "-c", code), gpus)
    try:
        assert lost.get(timeout=WAIT_S) == "rank 1 ended: 3,GPU-a"
    finally:
        others.close()


def test_a_rank_that_dies_is_named(start: Start) -> None:
    others, lost = start(BEATS)
    psutil.Process(others.pids[0]).kill()
    assert lost.get(timeout=WAIT_S) == "rank 1 ended (status -9)"
    assert others.failure() == "rank 1 ended (status -9)"


def test_a_rank_that_raises_says_why(start: Start) -> None:
    others, lost = start('print(\'{"error": "no tensor"}\', flush=True); time.sleep(60)')
    assert lost.get(timeout=WAIT_S) == "rank 1 ended: no tensor"
    others.send(DrawStep(np.zeros((0, 1), np.int32), np.zeros(1, np.int32)))  # and nobody minds


def test_a_rank_reports_its_readings(start: Start) -> None:
    take = "sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8), 'little'))"
    good, bad = (
        msgspec.json.encode(RankStatus(3, True, reading=reading)).decode()
        for reading in (RankReading(7, b"\n\xff"), RankReading(8, error="no room"))
    )
    others, _ = start(f"{take}; {take}; {take}; print({bad!r}); print({good!r})\n{BEATS}")
    (seventh,), (eighth,) = (others.read(number, AdapterSource("a")) for number in (7, 8))
    assert seventh.result(WAIT_S) == b"\n\xff"
    with pytest.raises(AdapterError, match="rank 1: no room"):
        eighth.result(WAIT_S)


def test_a_reading_ends_with_its_rank(start: Start) -> None:
    others, _ = start(BEATS)
    (reading,) = others.read(7, AdapterSource("a"))
    psutil.Process(others.pids[0]).kill()
    with pytest.raises(RunnerLostError, match=r"rank 1 ended \(status -9\)"):
        reading.result(WAIT_S)


def test_a_reading_ends_where_ranks_are_ended(start: Start) -> None:
    others, _ = start(BEATS)
    (reading,) = others.read(7, AdapterSource("a"))
    others.close()
    with pytest.raises(RunnerLostError):
        reading.result(WAIT_S)


def test_a_rank_that_falls_silent_is_named(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.5)
    _, lost = start(f"{SERVES}; time.sleep(60)")
    assert lost.get(timeout=WAIT_S).startswith("rank 1 has been silent for")


@pytest.mark.parametrize("code", ["time.sleep(60)", f"{STARTS}; time.sleep(60)"])
def test_a_rank_that_is_silent_while_it_starts_is_named(
    start: Start, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(module, "START_SILENCE_S", 0.5)
    _, lost = start(code)
    assert lost.get(timeout=WAIT_S).startswith("rank 1 has been silent for")


def test_a_rank_that_is_busy_while_it_starts_is_not_lost_unless_it_is_stopped(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it was silent when it is stopped, there is nothing more to wait for."""
    monkeypatch.setattr(module, "SILENCE_S", 0.5)
    others, lost = start(f"{STARTS}; time.sleep(60)")
    time.sleep(1.5)
    assert lost.empty()
    psutil.Process(others.pids[0]).send_signal(signal.SIGSTOP)
    assert lost.get(timeout=WAIT_S).startswith("rank 1 has been silent for")


def test_a_rank_that_keeps_a_step_waiting_is_named(start: Start) -> None:
    others, lost = start(BEATS)
    others.have_met(lambda: 4)
    assert lost.get(timeout=WAIT_S) == "rank 1 has kept a step waiting for 0.375 s"


@pytest.mark.parametrize("begun", [0, 4])
def test_a_rank_that_keeps_the_start_waiting_is_named(
    start: Start, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    """At the meeting, and at an exchange after it."""
    monkeypatch.setattr(module, "START_LIMIT_S", 0.5)
    reported = STARTS if begun else "print('{}', flush=True)"
    others, lost = start(f"while True: {reported}; time.sleep(0.05)")
    if begun:
        others.have_met(lambda: begun)
    assert lost.get(timeout=WAIT_S) == "rank 1 has kept the start waiting for 0.5 s"


@pytest.mark.parametrize("reported", [SERVES, STARTS])
def test_a_rank_that_waits_for_others_is_not_lost(start: Start, reported: str) -> None:
    others, lost = start(f"while True: {reported}; time.sleep(0.05)")
    others.have_met(lambda: 3)
    time.sleep(1.5)
    assert lost.empty()


def test_a_rank_that_was_closed_is_not_lost(start: Start) -> None:
    others, lost = start(BEATS)
    others.close()
    time.sleep(0.2)
    assert lost.empty()
    assert not others.meeting.parent.exists()


def test_a_rank_is_told_its_setup_and_what_follows() -> None:
    setup = Setup(CONFIG, 1, "meeting", RankTest(True, 7, True, [1, 2]))
    raw = encode(setup)
    stream = io.BytesIO(len(raw).to_bytes(LENGTH_BYTES, "little") + raw + b"\x09")
    assert decode(read_message(stream) or b"") == setup
    assert read_message(stream) is None, "a message that was cut off is none"


def test_a_rank_ends_with_its_standard_input() -> None:
    """A rank whose leader was killed before it said anything."""
    process = subprocess.Popen(module.COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
